"""SQS: one queue, standard or FIFO, whose server remembers what was taken.

A message is deleted after the commit of its events. Until then it is hidden from other receivers for `visibility`
seconds, which are extended while it waits here; then it comes again. When the source is closed, what is not recorded is
given back at once.

A request receives ten messages at most, so several are made at once if there are more. A FIFO queue gives no message of
a group to anybody while one before it is hidden, so the order in a group stays. A standard queue has no order.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import orjson

from app.config.sources.sqs import SqsSourceSettings
from app.events.parsing import Message
from workers.sources.base import Opened, SourceUnavailable
from workers.systems.sqs.client import MAX_ENTRIES, Refused, SqsClient, TooMuch
from workers.targets.base import TargetUnavailable

T = TypeVar("T")
R = TypeVar("R")

_THREADS = 10
_POLL_SECONDS = 1  # that SQS waits for a message: in whole seconds, and without a wait it asks only some of its servers
_PULLED_BYTES = 1 << 24  # after which a pull ends
_COUNTS = (
    "ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible", "ApproximateNumberOfMessagesDelayed",
)  # fmt: skip
_MIN_RECEIVE_COUNT = 100  # a worker gives back what it had received each time that it ends
_MIN_RETENTION_SECONDS = 4 * 86_400  # SQS's default, and a long weekend
_ERRORS = (TargetUnavailable, Refused)


class SqsSource:
    """One queue. `_hidden` has the messages that are neither deleted nor given back, and until when they are hidden."""

    def __init__(self, settings: SqsSourceSettings) -> None:
        self._settings = settings
        self._client = SqsClient(settings, _THREADS)
        self._threads: ThreadPoolExecutor | None = None
        self._hidden: dict[str, float] = {}  # by receipt handle; times of time.monotonic()

    def open(self, positions: Mapping[str, str]) -> Opened:  # noqa: ARG002 - the queue knows
        """Connect, and check that the queue exists."""
        self.close()
        try:
            self._client.connect()
        except _ERRORS as error:
            raise SourceUnavailable(error.reason) from error
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="sqs-source")
        with suppress(SourceUnavailable):  # a server may not know these attributes
            asked = {"AttributeNames": ["RedrivePolicy", "MessageRetentionPeriod"]}
            return Opened(risks=find_risks(self._ask("GetQueueAttributes", asked).get("Attributes") or {}))
        return Opened()

    def pull(self, most: int, seconds: float) -> Sequence[Message]:  # noqa: ARG002 - SQS waits for whole seconds
        """Return the next messages: those of one request, which waits for the first, or of many if that one is full."""
        messages = self._receive(min(most, MAX_ENTRIES), _POLL_SECONDS)
        is_full = len(messages) == MAX_ENTRIES
        while is_full and len(messages) < most and sum(len(one.body) for one in messages) < _PULLED_BYTES:
            wanted = min(most - len(messages), _THREADS * MAX_ENTRIES)
            counts = [min(MAX_ENTRIES, wanted - first) for first in range(0, wanted, MAX_ENTRIES)]
            found = self._in_threads(self._receive, counts)
            is_full = sum(map(len, found)) * 2 > wanted
            messages += [message for some in found for message in some]
        return messages

    def commit(self, messages: Sequence[Message]) -> None:
        """Delete the messages, and have those that are left hidden for longer if half of the time is over."""
        if self._threads is None:
            return
        handles = [str(message.tag) for message in messages]
        for handle in handles:
            self._hidden.pop(handle, None)
        soon = time.monotonic() + self._settings.visibility / 2
        waiting = [handle for handle, until in self._hidden.items() if until < soon]
        self._in_threads(self._delete, _requests(handles))
        self._in_threads(self._hide, _requests(waiting))

    def lag(self) -> int:
        """Return how many messages the queue has, with those that are not deleted yet; SQS only knows about how many.

        Raises `SourceUnavailable`.
        """
        found = self._ask("GetQueueAttributes", {"AttributeNames": list(_COUNTS)}).get("Attributes") or {}
        with self._reading("GetQueueAttributes"):
            return sum(int(found.get(name, 0)) for name in _COUNTS)

    def close(self) -> None:
        """Give back what is not deleted, as far as the queue can be reached, and close the connections."""
        threads = self._threads
        if threads is not None:
            with suppress(SourceUnavailable):
                self._in_threads(self._give_back, _requests(list(self._hidden)))
            self._threads = None
            threads.shutdown(cancel_futures=True)
        self._hidden.clear()
        self._client.close()

    def _receive(self, most: int, wait: int = 0) -> list[Message]:
        until = time.monotonic() + self._settings.visibility
        asked = {
            "MaxNumberOfMessages": most,
            "WaitTimeSeconds": wait,
            "VisibilityTimeout": int(self._settings.visibility),
            "AttributeNames": ["SentTimestamp"],
            "MessageAttributeNames": ["All"],
        }
        try:
            answer = self._ask("ReceiveMessage", asked, wait)
        except SourceUnavailable as error:
            if most == 1 or not isinstance(error.__cause__, TooMuch):
                raise
            return self._receive(1)  # the others are hidden for a while
        with self._reading("ReceiveMessage"):
            messages = [_message(found) for found in answer.get("Messages") or ()]
        self._hidden |= {str(message.tag): until for message in messages}
        return messages

    def _delete(self, handles: Sequence[str]) -> None:
        """Delete messages. One that SQS does not delete, such as one that was hidden for too short, comes again."""
        self._ask("DeleteMessageBatch", {"Entries": _entries(handles)})

    def _hide(self, handles: Sequence[str]) -> None:
        until = time.monotonic() + self._settings.visibility
        self._change_visibility(handles, int(self._settings.visibility))
        self._hidden |= dict.fromkeys(handles, until)

    def _give_back(self, handles: Sequence[str]) -> None:
        self._change_visibility(handles, 0)

    def _change_visibility(self, handles: Sequence[str], seconds: int) -> None:
        entries = [{**entry, "VisibilityTimeout": seconds} for entry in _entries(handles)]
        self._ask("ChangeMessageVisibilityBatch", {"Entries": entries})

    def _ask(self, action: str, asked: dict[str, Any], wait: float = 0.0) -> Any:
        try:
            return self._client.ask(action, asked, wait)
        except _ERRORS as error:
            raise SourceUnavailable(error.reason) from error

    @contextmanager
    def _reading(self, action: str) -> Iterator[None]:
        """Raise `SourceUnavailable` where the block finds that an answer is none to the action."""
        try:
            yield
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise SourceUnavailable(f"{self._client.where}: the answer to {action} cannot be read") from error

    def _in_threads(self, call: Callable[[T], R], values: Iterable[T]) -> list[R]:
        """Call in several threads, and return the results in order. After an error no further call is begun."""
        threads = self._threads
        if threads is None:
            raise SourceUnavailable(f"{self._client.where}: the connection is closed")
        calls = [threads.submit(call, value) for value in values]
        try:
            return [one.result() for one in calls]
        finally:
            for one in calls:
                one.cancel()
            wait(calls)


def find_risks(attributes: Mapping[str, Any]) -> Sequence[str]:
    """Return by which attributes of a queue messages leave it that nobody has pulled, or that were not recorded yet."""
    risks = []
    with suppress(ValueError, LookupError, TypeError):
        if (most := int(orjson.loads(attributes["RedrivePolicy"])["maxReceiveCount"])) < _MIN_RECEIVE_COUNT:
            risks.append(
                f"the queue's redrive policy has maxReceiveCount={most}, so a message leaves it when workers were"
                f" stopped {most} times before they had recorded it; set {_MIN_RECEIVE_COUNT} or more"
            )
    with suppress(ValueError, LookupError, TypeError):
        if (seconds := int(attributes["MessageRetentionPeriod"])) < _MIN_RETENTION_SECONDS:
            risks.append(
                f"the queue's MessageRetentionPeriod is {seconds} s, after which SQS deletes messages that were not"
                " pulled, without a word; set 1209600, which is 14 days"
            )
    return risks


def _requests(handles: Sequence[str]) -> Sequence[Sequence[str]]:
    """Return the handles by the requests that take them."""
    return [handles[first : first + MAX_ENTRIES] for first in range(0, len(handles), MAX_ENTRIES)]


def _entries(handles: Sequence[str]) -> list[dict[str, Any]]:
    return [{"Id": str(number), "ReceiptHandle": handle} for number, handle in enumerate(handles)]


def _message(found: Mapping[str, Any]) -> Message:
    named = found.get("MessageAttributes") or {}
    texts = {name.lower(): (one or {}).get("StringValue") for name, one in named.items()}
    body = str(found.get("Body") or "").encode(errors="replace")
    digest = hashlib.md5(body, usedforsecurity=False).hexdigest()
    said = found.get("MD5OfBody")
    return Message(
        body=body,
        tag=found["ReceiptHandle"],
        headers={name: text for name, text in texts.items() if isinstance(text, str)},
        sent_at=int((found.get("Attributes") or {}).get("SentTimestamp") or 0),
        problem="" if said in (None, digest) else f"its MD5 digest is {digest}, and SQS says {str(said)!r:.80}",
    )
