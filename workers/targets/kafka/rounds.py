"""Which messages of a call go to Kafka together: rounds of one batch for each of some partitions."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fnv_hash_fast import fnv1a_32

from app.events.model import Event
from app.events.trace import fields
from workers.targets.batch import Batch
from workers.targets.payloads import log

_OVERHEAD = 40  # the most that a message has besides its key and value, whatever the format's version
_HEADER_OVERHEAD = 4  # the most that one of its headers has besides its name and value, up to 8 KB


class Message(NamedTuple):
    """One event as it is sent."""

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
class Line:
    """What is yet to be sent to one partition, in order."""

    partition: int
    waiting: deque[Message] = field(default_factory=deque)

    def take(self, room: int) -> list[Message]:
        """As many messages as have room, at least one."""
        taken = [self.waiting.popleft()]
        room -= taken[0].size
        while self.waiting and (room := room - self.waiting[0].size) >= 0:
            taken.append(self.waiting.popleft())
        return taken


@dataclass(slots=True)
class Rounds:
    """What one call of `deliver` has yet to send, and how much of it goes at once."""

    batch: Batch
    lines: list[Line]
    room: int  # bytes of a batch of one partition

    def next_round(self, window: int) -> list[tuple[Line, list[Message]]]:
        """The next batches, each of another partition; a message too large to share a batch goes all alone.

        Raises `LeaseExpired`; when nothing more may be sent, there are none.
        """
        lines = self.lines[:window]
        large = next((line for line in lines if line.waiting[0].size > self.room), None)
        taken = [(line, line.take(self.room)) for line in ([large] if large else lines)]
        chosen = set(self.batch.begin([message.place for _, messages in taken for message in messages]))
        return [(line, [each for each in messages if each.place in chosen]) for line, messages in taken]

    def end_round(self, window: int) -> None:
        """Those that were served go to the end, so that no partition waits for the whole of another."""
        self.lines = [line for line in self.lines[window:] + self.lines[:window] if line.waiting]


def partition_of(key: bytes, count: int) -> int:
    """Which of `count` partitions a key goes to (as MinIO: §4.7; vectors §15).

    MinIO takes the hash for a signed number, divides towards zero and drops the sign of what is left. Producers that
    share a topic and care for order by key have to agree on this.
    """
    found = fnv1a_32(key)
    return (found if found < 0x80000000 else 0x100000000 - found) % count


def make_lines(events: Sequence[Event], partitions: Sequence[int], *, headers: bool) -> list[Line]:
    """The events' messages by partition; `headers` says whether the format has them."""
    lines: dict[int, Line] = {}
    for index, event in enumerate(events):
        path = event.path
        key = path.encode()
        number = partitions[partition_of(key, len(partitions))]
        line = lines.get(number)
        if line is None:
            line = lines[number] = Line(number)
        traced = [(name, text.encode()) for name, text in fields(event.trace)] if headers and event.trace else []
        line.waiting.append(Message(index, path, key, log(event).encode(), traced))
    return list(lines.values())
