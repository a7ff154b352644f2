"""SQS: each event is one message of a standard or a FIFO queue.

Delivered means: SQS named the message among those that it has stored (`Successful` of SendMessageBatch).

A request has up to ten messages, in sync mode one, because SQS confirms each by itself. It names an object only once:
the object's next event waits for the answer. A FIFO queue gets a group for each object and the event's id for
deduplication, so that it keeps the order and drops what is sent again within five minutes.

| answer                                                                 | outcome                               |
|------------------------------------------------------------------------|---------------------------------------|
| named in Successful, with the digest of the message or without one     | Delivered                             |
| named in Failed: contents, size, attributes                            | Rejected                              |
| named in Failed: throttled, no permission, the queue or its KMS key    | Unavailable                           |
| named in Failed: anything else                                         | Failed                                |
| not named, or with another message's digest, while others are not      | Failed                                |
| none of the messages named, or all with the digests of others          | Unavailable                           |
| to the request: contents or size                                       | each alone; Rejected for a single one |
| to the request: anything else, no answer                               | Unavailable; nothing more is sent     |
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from app.config.targets.sqs import SqsSettings
from app.events.model import Event
from workers.delivery.outcomes import DELIVERED, Failed, Outcome, Rejected, Unavailable
from workers.systems.sqs.client import ABOUT_MESSAGES, MAX_ENTRIES, MAX_SHOWN_CHARACTERS, Refused, SqsClient
from workers.targets.base import NO_LEASE, LeaseCheck, TargetUnavailable
from workers.targets.batch import MAX_THREADS, Batch, RequestThreads
from workers.targets.messages import message_format
from workers.targets.tcp import Endpoint

BATCH_BYTES = 262_144  # bodies and attributes of a request; AWS takes more since 2025, others do not
_ABOUT_ONE = re.compile(r"InvalidParameter|InvalidRequest|ValidationError")  # in an entry; of a request it may be ours
# About the queue, its key or the login: every message would be refused.
_ABOUT_THE_QUEUE = re.compile(
    r"Throttl|OverLimit|TooManyRequests|RequestLimit|ServiceUnavailable|AccessDenied|NotAuthorized|KMS|NonExistentQueue"
    r"|QueueDoesNotExist|InvalidSecurity|ExpiredToken|UnsupportedOperation",
    re.IGNORECASE,
)
# XML cannot have these, and SQS checks for XML's characters; the other ones are escaped in JSON anyway.
_NOT_IN_XML = re.compile("[\ufffe\uffff\ud800-\udfff]")
_NOT_IN_ATTRIBUTES = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]")


class Entry(NamedTuple):
    """One message of a request."""

    place: int  # index among the events of the call
    members: dict[str, Any]
    size: int  # bytes that count towards SQS's limit

    @property
    def digest(self) -> str:
        """What SQS says of a body that it has stored."""
        body: str = self.members["MessageBody"]
        return hashlib.md5(body.encode(), usedforsecurity=False).hexdigest()


class SqsTarget:
    """One queue: a pool of kept-alive connections and, if several requests may be open, a pool of threads."""

    def __init__(self, settings: SqsSettings) -> None:
        self._settings = settings
        self._format = message_format(settings)
        self._client = SqsClient(settings, MAX_THREADS)
        self._threads = RequestThreads("sqs")
        self._where = self._client.where

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the endpoint, or its proxy."""
        return self._client.endpoints()

    def open(self) -> None:
        """Connect, and check that the queue exists and the login may ask for it; create nothing."""
        self._client.connect()

    def deliver(self, events: Sequence[Event], window: int, lease: LeaseCheck = NO_LEASE) -> Sequence[Outcome]:
        """Send requests of up to ten messages, up to `window` (at most 64) at once; in sync mode of one message."""
        if not self._client.connected:
            self._client.connect()
        batch = Batch(events, lease)
        if window == 1:
            self._send_in_order(batch, range(len(events)), most=1)
        else:
            self._threads.run(batch, window, MAX_ENTRIES, lambda indexes: self._send_in_order(batch, indexes))
        return batch.outcomes()

    def close(self) -> None:
        """Close the connections and end the threads, which are idle between calls."""
        self._threads.close()
        self._client.close()

    def _send_in_order(self, batch: Batch, indexes: Sequence[int], most: int = MAX_ENTRIES) -> None:
        """Send these events, of each object one at a time."""
        waiting = list(indexes)
        while waiting and not batch.is_over:
            some, waiting = _next(batch.events, waiting, most)
            for entries in _portions(self._entry(index, batch.events[index]) for index in some):
                self._send(batch, entries)

    def _send(self, batch: Batch, entries: Sequence[Entry]) -> None:
        """Make one request for the messages that may be sent; if it is refused for one of them, one for each."""
        chosen = set(batch.begin([entry.place for entry in entries]))
        entries = [entry for entry in entries if entry.place in chosen]
        if not entries:
            return
        asked = {"Entries": [entry.members for entry in entries]}
        indexes = [entry.place for entry in entries]
        try:
            answer = self._client.ask("SendMessageBatch", asked)
        except TargetUnavailable as error:
            batch.settle_all(indexes, Unavailable(error.reason, error.retry_after))
            return
        except Refused as refused:
            if len(entries) == 1:
                batch.settle(entries[0].place, Rejected(refused.reason))
                return
            for entry in entries:
                self._send(batch, [entry])
            return
        outcomes = self._outcomes(answer, {entry.members["Id"]: entry.digest for entry in entries})
        lost: Outcome = Failed(f"{self._where}: the answer does not name the message, or has another one's digest")
        if not outcomes.keys() & {entry.members["Id"] for entry in entries}:
            reason = "the answer names none of the messages of the request, or has the digests of others"
            lost = Unavailable(f"{self._where}: {reason}")
        for entry in entries:
            batch.settle(entry.place, outcomes.get(entry.members["Id"], lost))

    def _outcomes(self, answer: Any, digests: Mapping[str, str]) -> dict[str, Outcome]:
        """Return the outcomes of the messages that an answer names, but of those that SQS has stored as another one."""
        try:
            outcomes: dict[str, Outcome] = {
                entry["Id"]: DELIVERED
                for entry in answer.get("Successful") or ()
                if entry.get("MD5OfMessageBody") in (None, digests.get(entry["Id"]))
            }
            for entry in answer.get("Failed") or ():
                code, words = str(entry.get("Code", "")), str(entry.get("Message") or "")
                reason = f"{self._where}: {code}: {words}"[:MAX_SHOWN_CHARACTERS]
                outcomes[entry["Id"]] = _outcome(code, reason, sender=bool(entry.get("SenderFault")))
        except (AttributeError, KeyError, TypeError):
            return {}
        return outcomes

    def _entry(self, index: int, event: Event) -> Entry:
        """Return an event's message; its name in the request is the event's, so that no other request's answer fits."""
        body = _NOT_IN_XML.sub(lambda match: f"\\u{ord(match[0]):04x}", self._format.body(event))
        named = {"bucket": event.bucket, "event": event.name, "id": event.id}
        if event.trace:
            named |= self._format.all_headers(event)
        named = {name: _NOT_IN_ATTRIBUTES.sub("\ufffd", value) for name, value in named.items() if value}
        attributes = {name: {"DataType": "String", "StringValue": value} for name, value in named.items()}
        members: dict[str, Any] = {"Id": event.id, "MessageBody": body, "MessageAttributes": attributes}
        if self._settings.is_fifo:
            members["MessageGroupId"] = hashlib.sha256(event.path.encode(errors="replace")).hexdigest()
            members["MessageDeduplicationId"] = event.id
        size = len(body.encode()) + sum(len(name) + 6 + len(value.encode()) for name, value in named.items())
        return Entry(index, members, size)


def _outcome(code: str, reason: str, *, sender: bool) -> Outcome:
    if _ABOUT_THE_QUEUE.search(code):
        return Unavailable(reason)
    if sender and (ABOUT_MESSAGES.search(code) or _ABOUT_ONE.search(code)):
        return Rejected(reason)
    return Failed(reason)


def _next(events: Sequence[Event], waiting: Sequence[int], most: int) -> tuple[list[int], list[int]]:
    """Return the next events, of each object one, and those that are left."""
    chosen: list[int] = []
    left: list[int] = []
    named: set[str] = set()
    for index in waiting:
        path = events[index].path
        (left if path in named or len(chosen) == most else chosen).append(index)
        named.add(path)
    return chosen, left


def _portions(entries: Iterator[Entry]) -> Iterator[list[Entry]]:
    """Yield parts of at most `BATCH_BYTES`; more only for a single message."""
    part: list[Entry] = []
    size = 0
    for entry in entries:
        if part and size + entry.size > BATCH_BYTES:
            yield part
            part, size = [], 0
        part.append(entry)
        size += entry.size
    if part:
        yield part
