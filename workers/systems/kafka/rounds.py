"""Choose which messages of a call to send to Kafka together: rounds with one batch for each of some partitions."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fnv_hash_fast import fnv1a_32

from app.events.model import Event
from workers.targets.batch import Batch
from workers.targets.messages import MessageFormat

_MAX_OVERHEAD_BYTES = 40  # the most that a message has besides its key and value, in any version of the format
_MAX_HEADER_OVERHEAD_BYTES = 4  # the most that one of its headers has besides its name and value, up to 8 KB


class Message(NamedTuple):
    """One event as it is sent."""

    place: int  # index among the events of the call
    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]  # the trace context, if the event has one, and a CloudEvent's

    @property
    def size(self) -> int:
        """The most bytes that it takes in a batch."""
        size = len(self.key) + len(self.value) + _MAX_OVERHEAD_BYTES
        for name, value in self.headers:
            size += len(name) + len(value) + _MAX_HEADER_OVERHEAD_BYTES
        return size


@dataclass(slots=True)
class Line:
    """The messages still to be sent to one partition, in order."""

    topic: str
    partition: int
    waiting: deque[Message] = field(default_factory=deque)

    def take(self, max_bytes: int) -> list[Message]:
        """Take as many messages as have at most `max_bytes` together, at least one."""
        messages = [self.waiting.popleft()]
        left = max_bytes - messages[0].size
        while self.waiting and (left := left - self.waiting[0].size) >= 0:
            messages.append(self.waiting.popleft())
        return messages


@dataclass(slots=True)
class Rounds:
    """What one call of `deliver` still has to send, and how much of it is sent at once."""

    batch: Batch
    lines: list[Line]
    max_bytes: int  # bytes of a batch of one partition

    def next_round(self, window: int) -> list[tuple[Line, list[Message]]]:
        """Return the next batches, each of a different partition; a message too large to share a batch is sent alone.

        Raises `LeaseExpired`. Return none if nothing more may be sent.
        """
        lines = self.lines[:window]
        large = next((line for line in lines if line.waiting[0].size > self.max_bytes), None)
        taken = [(line, line.take(self.max_bytes)) for line in ([large] if large else lines)]
        chosen = set(self.batch.begin([message.place for _, messages in taken for message in messages]))
        return [(line, [message for message in messages if message.place in chosen]) for line, messages in taken]

    def end_round(self, window: int) -> None:
        """Move the partitions just served to the end, so that no partition waits until another one is finished."""
        self.lines = [line for line in self.lines[window:] + self.lines[:window] if line.waiting]


def partition_of(key: bytes, count: int) -> int:
    """Return which of `count` partitions a key belongs to (as MinIO: §4.7; vectors §15).

    MinIO treats the hash as a signed number, divides rounding towards zero and drops the sign of the remainder.
    Producers that share a topic and rely on order by key must agree on this.
    """
    hashed = fnv1a_32(key)
    return (hashed if hashed < 0x80000000 else 0x100000000 - hashed) % count


class Route(NamedTuple):
    """Where an event goes, and the key of its message."""

    topic: str
    partition: int
    key: bytes


def make_lines(
    events: Sequence[Event],
    indexes: Iterable[int],
    routes: Sequence[Route | None],
    messages: MessageFormat,
    *,
    headers: bool,
) -> list[Line]:
    """Return the messages of some events, which have routes, by topic and partition.

    `headers`: the broker's version of the protocol supports headers.
    """
    always, write = headers and messages.headers is not None, messages.body
    lines: dict[tuple[str, int], Line] = {}
    for index in indexes:
        event, route = events[index], routes[index]
        if route is None:
            continue
        topic, number, key = route
        line = lines.get((topic, number))
        if line is None:
            line = lines[topic, number] = Line(topic, number)
        named: list[tuple[str, bytes]] = []
        if always or (headers and event.trace):
            named = [(name, text.encode()) for name, text in messages.all_headers(event).items()]
        line.waiting.append(Message(index, key, write(event).encode(), named))
    return list(lines.values())
