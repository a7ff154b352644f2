"""Kafka: each event is one message on a topic, its key `bucket/object`, its value the log envelope (reference §4.7).

Delivered means: the leader of the partition answered that all in-sync replicas have the message (`acks=all`).

A broker confirms a batch of one partition as one, and all events of an object go to one partition. So a call goes in
rounds: each takes from up to `window` partitions one batch, and the next begins when all of them have been answered.
Thus nothing of an object is under way behind an event that may yet fail, and with `window == 1` one batch is.

The producer repeats what was not answered, within 1.5 `timeout`, and brokers recognise repetitions. What is then still
unanswered may arrive all the same: it is Unavailable, and the producer, which might yet bring it, is thrown away.

When a broker refuses a batch, kafka-python 3.0 ends everything else that is under way with the same error. So only what
was under way alone is blamed; all else is tried again, by a new producer and in smaller batches.

| answer                                                           | outcome                               |
|------------------------------------------------------------------|---------------------------------------|
| no error                                                         | Delivered                             |
| message too large, message refused by the broker's validation    | Rejected                              |
| an error that the broker has no name for                         | Failed                                |
| no topic, no leader, too few replicas, no permission, no answer  | Unavailable, and nothing more is sent |
"""

import socket
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fnv_hash_fast import fnv1a_32
from kafka import KafkaProducer
from kafka import errors as kafka_errors
from kafka.errors import KafkaError, KafkaTimeoutError
from kafka.future import Future

from app.config.targets.kafka import KafkaSettings
from app.events.model import Event
from app.events.trace import fields
from workers.delivery.outcomes import DELIVERED, NOT_ATTEMPTED, Failed, Outcome, Rejected, Unavailable
from workers.targets import tls
from workers.targets.base import NO_LEASE, LeaseCheck, TargetUnavailable
from workers.targets.kafka.client import Client, is_innocent, missing_package, unwrapped, words
from workers.targets.payloads import log, mark_not_attempted

CLIENT_NAME = "Bucketwire"

_MECHANISMS = {"plain": "PLAIN", "sha256": "SCRAM-SHA-256", "sha512": "SCRAM-SHA-512"}
_BATCH = 1_000_000  # bytes; a broker takes 1,048,588 unless it is told otherwise
_OVERHEAD = 40  # the most that a message has besides its key and value, whatever the format's version
_HEADERS_SINCE = (0, 11)  # as `version` says, or the broker
_HEADER_OVERHEAD = 4  # the most that one of its headers has besides its name and value, up to 8 KB
_REQUEST = 16 * 2**20  # a larger message is not even sent; a broker's limit is lower, and words it better

_TOO_LARGE = (kafka_errors.MessageSizeTooLargeError, kafka_errors.RecordListTooLargeError)
_REFUSALS = (*_TOO_LARGE, kafka_errors.InvalidRecordError)
_HINTS = {
    kafka_errors.UnknownTopicOrPartitionError: "the topic is not there and the broker makes none by itself; create it",
    kafka_errors.InvalidReplicationFactorError: "the broker cannot make the topic with the replicas it is set to",
    kafka_errors.TopicAuthorizationFailedError: "the user needs Describe and Write on the topic",
    kafka_errors.ClusterAuthorizationFailedError: "the user needs IdempotentWrite on the cluster; or idempotent=off",
    kafka_errors.InvalidReceiveError: "does it want tls=on?",  # a TLS alert, read as the length of an answer
    kafka_errors.InvalidTimestampError: "compare the clock of this machine with the broker's",
}


class _Message(NamedTuple):
    place: int  # among the events of the call
    path: str
    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]  # the trace context, where the event has one

    @property
    def size(self) -> int:
        """Bytes that it has in a batch, at most."""
        size = len(self.key) + len(self.value) + _OVERHEAD
        for name, value in self.headers:
            size += len(name) + len(value) + _HEADER_OVERHEAD
        return size


@dataclass(slots=True)
class _Line:
    """What is yet to be sent to one partition, in order."""

    partition: int
    waiting: deque[_Message] = field(default_factory=deque)

    def take(self, room: int) -> list[_Message]:
        """As many messages as have room, at least one."""
        taken = [self.waiting.popleft()]
        room -= taken[0].size
        while self.waiting and (room := room - self.waiting[0].size) >= 0:
            taken.append(self.waiting.popleft())
        return taken


@dataclass(slots=True)
class _Work:
    """One call of `deliver`: an outcome for each event, and why nothing more is sent once that is so."""

    events: Sequence[Event]
    lines: list[_Line]
    outcomes: list[Outcome]
    room: int  # bytes of a batch
    stuck: set[str] = field(default_factory=set)
    refused: Unavailable | None = None

    def next_round(self, window: int) -> list[tuple[_Line, list[_Message]]]:
        """The next batches, each of another partition; a message too large to share a batch goes all alone."""
        lines = self.lines[:window]
        large = next((line for line in lines if line.waiting[0].size > self.room), None)
        return [(line, line.take(self.room)) for line in ([large] if large else lines)]

    def end_round(self, window: int) -> None:
        """Those that were served go to the end, so that no partition waits for the whole of another."""
        self.lines = [line for line in self.lines[window:] + self.lines[:window] if line.waiting]

    def settle(self, message: _Message, outcome: Outcome) -> None:
        """Note an outcome, and what it means for what has not been sent yet."""
        self.outcomes[message.place] = outcome
        if isinstance(outcome, Failed | Unavailable):
            self.stuck.add(message.path)
            if isinstance(outcome, Unavailable):
                self.refused = self.refused or outcome

    def give_up(self, reason: Unavailable) -> None:
        """What has not been sent shares the reason of what was refused."""
        for line in self.lines:
            for message in line.waiting:
                self.outcomes[message.place] = reason


class KafkaTarget:
    """One topic, one producer, which has a thread of its own."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._where = f"Kafka topic {settings.topic} at {settings.brokers}"
        self._producer: Any = None
        self._client: Client | None = None
        self._stamp: object = None
        self._room = _BATCH
        # From a batch's first message on: half of it for the others to come, then what an answer may take.
        self._patience = settings.timeout * 1.5

    def open(self) -> None:
        """Connect, log in, and see that the topic is there; a broker that makes topics by itself makes it now."""
        self._connect()

    def deliver(self, events: Sequence[Event], window: int, lease: LeaseCheck = NO_LEASE) -> Sequence[Outcome]:
        """In rounds of one batch for each of up to `window` partitions."""
        if self._producer is None or self._stamp != self._files():
            self._connect()
        partitions, headers = self._partitions(), self._producer.config["api_version"] >= _HEADERS_SINCE
        lines = _lines(events, partitions, headers=headers)
        work = _Work(events, lines, [NOT_ATTEMPTED] * len(events), self._room)
        while work.lines and work.refused is None:
            lease.check()
            self._round(work, window)
            work.end_round(window)
        if work.refused is not None:
            work.give_up(work.refused)
            self.close()
        return mark_not_attempted(events, work.outcomes)

    def close(self) -> None:
        """End the producer, its thread and its connections."""
        producer, self._producer = self._producer, None
        client, self._client = self._client, None
        if producer is not None:
            try:
                producer.close(timeout=1)
            except KafkaError:
                # Something is still unanswered that nobody waits for any more; the library has no other way out.
                producer._sender.force_close()
                producer._sender.join(1)
        elif client is not None:  # a producer's thread closes it
            client.close()

    def _connect(self) -> None:
        self.close()
        chosen = self._settings
        if package := missing_package(chosen.compression_codec):
            raise TargetUnavailable(f"compression_codec: {chosen.compression_codec} needs the package {package}")
        self._stamp = self._files()
        config = self._config()

        def begun(**given: Any) -> Client:
            self._client = Client(level=chosen.compression_level, patience=chosen.timeout, **given)
            self._client.begin()
            return self._client

        try:
            self._producer = KafkaProducer(kafka_client=begun, **config)
            self._partitions()
        except (KafkaError, OSError, ValueError) as error:
            reason = self._reason(error)
            self.close()
            raise TargetUnavailable(reason) from error
        except BaseException:
            self.close()
            raise

    def _config(self) -> dict[str, Any]:
        chosen = self._settings
        milliseconds = round(chosen.timeout * 1000)
        config: dict[str, Any] = {
            "bootstrap_servers": [str(broker) for broker in chosen.bootstrap],
            "client_id": CLIENT_NAME,
            "api_version": chosen.api_version,
            "acks": "all",
            "enable_idempotence": chosen.is_idempotent,
            # Without idempotence only this keeps the halves of a batch that was too large in their order.
            "max_in_flight_requests_per_connection": 5 if chosen.is_idempotent else 1,
            "compression_type": None if chosen.compression_codec == "none" else chosen.compression_codec,
            # A batch goes when its round is complete, not while it is being filled.
            "linger_ms": milliseconds // 2,
            "delivery_timeout_ms": milliseconds + milliseconds // 2,
            "request_timeout_ms": milliseconds,
            "max_block_ms": milliseconds,
            "batch_size": _BATCH,
            "max_request_size": _REQUEST,
            "reconnect_backoff_max_ms": 500,  # the default of 30 s outlasts every outage by as much
            "metrics_enabled": False,
            "socket_options": [
                (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
                (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            ],
            "security_protocol": ("SASL_" if chosen.sasl else "") + ("SSL" if chosen.tls else "PLAINTEXT"),
        }
        if chosen.sasl:
            config["sasl_mechanism"] = _MECHANISMS[chosen.sasl_mechanism]
            config["sasl_plain_username"] = chosen.sasl_username
            config["sasl_plain_password"] = chosen.sasl_password
        if chosen.tls:
            config["ssl_context"] = tls.context(
                chosen.tls_ca,
                skip_verify=chosen.tls_skip_verify,
                client_cert=chosen.client_tls_cert,
                client_key=chosen.client_tls_key,
            )
        return config

    def _partitions(self) -> list[int]:
        try:
            return sorted(self._producer.partitions_for(self._settings.topic))
        except KafkaError as error:
            raise TargetUnavailable(self._reason(error)) from error

    def _round(self, work: _Work, window: int) -> None:
        """Send one batch to each of the next partitions, and settle what is in them."""
        client = self._client
        if client is not None:
            client.trouble = None
        batches = work.next_round(window)
        sent = [
            (line, message, self._send(line.partition, message))
            for line, batch in batches
            for message in batch
            if message.path not in work.stuck  # else it stays NOT_ATTEMPTED
        ]
        self._await([future for _, _, future in sent])
        unclear: list[tuple[_Line, _Message]] = []
        blamed = False
        for line, message, future in sent:
            outcome = DELIVERED if future.succeeded() else self._outcome(future.exception, message)
            if outcome is DELIVERED or isinstance(outcome, Unavailable):
                work.settle(message, outcome)
            elif len(sent) == 1:
                blamed = True
                work.settle(message, outcome)
            else:
                unclear.append((line, message))
        for line, message in reversed(unclear):
            line.waiting.appendleft(message)
        largest = max(sum(message.size for message in batch) for _, batch in batches)
        if len(sent) > 1 and client is not None and isinstance(client.trouble, _TOO_LARGE):
            self._room = work.room = largest // 2  # for good: the topic takes less than brokers usually do
        elif unclear:
            work.room = largest // 2
        if (unclear or blamed) and work.refused is None:
            self._begin_again(work)

    def _begin_again(self, work: _Work) -> None:
        try:
            self._connect()
        except TargetUnavailable as error:
            work.refused = Unavailable(error.reason, error.retry_after)

    def _send(self, partition: int, message: _Message) -> Any:
        try:
            return self._producer.send(
                self._settings.topic, message.value, message.key, message.headers, partition=partition
            )
        except (KafkaError, ValueError) as error:
            return Future().failure(error)

    def _await(self, futures: Sequence[Any]) -> None:
        """Return when every message has its answer, or has had the time for it."""
        deadline = time.monotonic() + self._patience + 0.5
        while not all(future.is_done for future in futures) and (left := deadline - time.monotonic()) > 0:
            try:
                self._producer.flush(left)
            except KafkaError:
                # Also raised when the library has cut a batch in two, which are now on their way.
                continue

    def _outcome(self, error: BaseException | None, message: _Message) -> Outcome:
        error = unwrapped(error or KafkaTimeoutError())
        reason = self._reason(error)
        if isinstance(error, _REFUSALS):
            return Rejected(f"{reason} (it has {len(message.key) + len(message.value)} bytes)")
        if is_innocent(error) or type(error) in (kafka_errors.UnknownError, kafka_errors.CorruptRecordError):
            return Failed(reason)
        return Unavailable(reason)

    def _reason(self, error: BaseException) -> str:
        if isinstance(error, KafkaTimeoutError) and self._client is not None and self._client.trouble is not None:
            error = self._client.trouble
        found = words(error)
        hint = next((hint for kind, hint in _HINTS.items() if isinstance(error, kind)), "")
        if found.endswith("socket disconnected"):
            hint = "brokers hang up on a wrong login" if self._settings.sasl else "does it want tls=on or sasl=on?"
        return f"{self._where}: {found}" + (f" ({hint})" if hint else "")

    def _files(self) -> object:
        chosen = self._settings
        return tls.stamp(chosen.tls_ca, chosen.client_tls_cert, chosen.client_tls_key)


def partition_of(key: bytes, count: int) -> int:
    """Which of `count` partitions a key goes to (as MinIO: §4.7; vectors §15).

    MinIO takes the hash for a signed number, divides towards zero and drops the sign of what is left. Producers that
    share a topic and care for order by key have to agree on this.
    """
    found = fnv1a_32(key)
    return (found if found < 0x80000000 else 0x100000000 - found) % count


def _lines(events: Sequence[Event], partitions: Sequence[int], *, headers: bool) -> list[_Line]:
    """The events' messages by partition; `headers` says whether the format has them."""
    lines: dict[int, _Line] = {}
    for index, event in enumerate(events):
        path = event.path
        key = path.encode()
        number = partitions[partition_of(key, len(partitions))]
        line = lines.get(number)
        if line is None:
            line = lines[number] = _Line(number)
        traced = [(name, text.encode()) for name, text in fields(event.trace)] if headers and event.trace else []
        line.waiting.append(_Message(index, path, key, log(event).encode(), traced))
    return list(lines.values())
