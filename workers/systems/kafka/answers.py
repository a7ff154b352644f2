"""Decide the outcome of a message by the library's error; the table is in `workers.systems.kafka.target`."""

import re

from kafka import errors as kafka_errors
from kafka.errors import KafkaError, KafkaTimeoutError, for_code

from workers.delivery.outcomes import Failed, Outcome, Rejected, Unavailable

TOO_LARGE = (kafka_errors.MessageSizeTooLargeError, kafka_errors.RecordListTooLargeError)
_HINTS = {
    kafka_errors.UnknownTopicOrPartitionError: "the topic does not exist and the broker does not create it; create it",
    kafka_errors.InvalidReplicationFactorError: "the broker has too few nodes for the topic's default replicas",
    kafka_errors.TopicAuthorizationFailedError: "the user needs Describe and Write on the topic",
    kafka_errors.ClusterAuthorizationFailedError: "the user needs IdempotentWrite on the cluster; or idempotent=off",
    kafka_errors.InvalidReceiveError: "does it need tls=on?",  # a TLS alert, read as the length of an answer
    kafka_errors.InvalidRecordError: "does the topic need a schema, which a message has not?",
    kafka_errors.InvalidTimestampError: "compare the clock of this machine with the broker's",
}
_NUMBERED = re.compile(r"\[Error (-?[0-9]+)\]")


def outcome_of_error(error: BaseException, reason: str, size: int) -> Outcome:
    """Return the outcome of a message with `size` bytes of key and value; `error` is `unwrapped`."""
    if isinstance(error, TOO_LARGE):
        return Rejected(f"{reason} (it has {size} bytes)")
    if _is_innocent(error) or type(error) in (kafka_errors.UnknownError, kafka_errors.CorruptRecordError):
        return Failed(reason)
    return Unavailable(reason)


def unwrapped(error: BaseException) -> BaseException:
    """Return the broker's error if the library has only its number and name, in the text of a bare `KafkaError`.

    The library does this with the broker's answer when the producer requests its id, before it sends anything.
    """
    match = _NUMBERED.search(str(error)) if type(error) is KafkaError else None
    return for_code(int(match[1]))() if match else error


def describe_error(error: BaseException, last_error: BaseException | None, *, sasl: bool) -> str:
    """Return an error as text, with a hint at its cause; `last_error` explains a timeout."""
    if isinstance(error, KafkaTimeoutError) and last_error is not None:
        error = last_error
    text = str(error.args[0]) if error.args and error.args[0] else ""
    text = f"{type(error).__name__}: {text or getattr(error, 'description', None) or 'no reason given'}"
    hint = next((hint for kind, hint in _HINTS.items() if isinstance(error, kind)), "")
    if text.endswith("socket disconnected"):
        hint = "brokers close the connection after a wrong login" if sasl else "does it need tls=on or sasl=on?"
    if place := getattr(error, "advertised", ""):
        hint = f"at {place}, the address that the cluster advertises; is advertised.listeners right for this machine?"
    return text + (f" ({hint})" if hint else "")


def _is_innocent(error: BaseException) -> bool:
    """Return whether a message was refused only because the broker rejected another message of its batch.

    Every other bare `KafkaError` is about the producer, not about a message.
    """
    return type(error) is KafkaError and "part of a batch" in str(error)
