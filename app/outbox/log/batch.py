"""Convert the requests of one transaction to rows of the log, and to the answers of the requests."""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from app.config.arn import TargetId
from app.events.model import Event
from app.events.order import comparable, states_content
from app.events.service_events import SERVICE_BUCKET
from app.events.test_events import TEST_BUCKET
from app.outbox.buckets import REMOVED
from app.outbox.log.routing import Routing

Targets = tuple[int, ...]  # ids
_NO_BUCKETS = (TEST_BUCKET, SERVICE_BUCKET)


@dataclass(slots=True)
class Receipt:
    """The result of one request's events, which the frontend gets as the response. The guard refused `overtaken`.

    `due` are the partitions in which events were recorded for each target.
    """

    recorded: int = 0
    repeated: int = 0
    overtaken: int = 0
    matched: dict[TargetId, int] = field(default_factory=dict)
    discarded: dict[TargetId, int] = field(default_factory=dict)
    due: dict[TargetId, set[int]] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class QueueFull:
    """The whole request was rejected: these targets have `queue_full=reject` and a full queue."""

    targets: tuple[TargetId, ...]


def key_hash(bucket: str, key: str) -> int:
    """Return a signed 64-bit hash of an object; it determines the object's partition and indexes its history."""
    digest = hashlib.blake2b(f"{bucket}/{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


@lru_cache(maxsize=1024)
def targets_text(ids: Targets) -> str:
    """Format target ids as the log stores them: `,3,17,`, so that a search for `,3,` finds 3 and never 13."""
    listed = ",".join(map(str, ids))
    return f",{listed}," if listed else ""


class BatchBuilder:
    """Convert the requests of one transaction to rows, without access to the database."""

    def __init__(
        self,
        routing: Routing,
        matched: Mapping[str, Targets],
        known: Collection[str],
        room: dict[int, int],
        first: int,
        partitions: int,
        now: int,
        overtaken: Collection[str] = (),
    ) -> None:
        self._routing = routing
        self._matched = matched
        self._known = set(known)
        self._room = room
        self._first = first
        self._partitions = partitions
        self._now = now
        self._overtaken = overtaken
        self.rows: list[tuple[Any, ...]] = []  # in the order of the table's columns
        self.buckets: set[str] = set()  # those that exist according to the rows, without our own
        self.recorded: dict[int, int] = {}  # by target, as is `discarded`
        self.discarded: dict[int, int] = {}

    def add(self, events: Sequence[Event]) -> Receipt | QueueFull:
        """Add one request's events, or reject all of them if a target's queue is full."""
        asked = len(events)
        if self._overtaken:
            events = [event for event in events if event.id not in self._overtaken]
        fresh: dict[str, tuple[Event, Targets]] = {}
        for event in events:
            if event.id not in self._known and event.id not in fresh:
                found = self._matched.get(event.id)
                fresh[event.id] = (event, self._routing.targets(event) if found is None else found)
        full = self._refusing(fresh.values())
        if full:
            return QueueFull(full)
        receipt = Receipt(len(fresh), len(events) - len(fresh), asked - len(events))
        self._known.update(fresh)
        numbers: dict[tuple[Targets, Targets], int] = {}
        places: set[tuple[Targets, int]] = set()
        for event, matched in fresh.values():
            taken = self._take_room(matched) if self._room else matched
            numbers[matched, taken] = numbers.get((matched, taken), 0) + 1
            places.add((taken, self._add_row(event, targets_text(taken))))
        for taken, partition in places:
            for target in taken:
                receipt.due.setdefault(self._routing.ids[target], set()).add(partition)
        for (matched, taken), number in numbers.items():
            for target in matched:
                arn = self._routing.ids[target]
                receipt.matched[arn] = receipt.matched.get(arn, 0) + number
                if target in taken:
                    self.recorded[target] = self.recorded.get(target, 0) + number
                else:
                    self.discarded[target] = self.discarded.get(target, 0) + number
                    receipt.discarded[arn] = receipt.discarded.get(arn, 0) + number
        return receipt

    def _take_room(self, targets: Targets) -> Targets:
        """Return those of the targets whose queues have room for one more event, and count it."""
        taken = tuple([target for target in targets if self._room.get(target, 1) > 0])
        for target in taken:
            if target in self._room:
                self._room[target] -= 1
        return taken

    def _refusing(self, fresh: Iterable[tuple[Event, Targets]]) -> tuple[TargetId, ...]:
        if not self._routing.rejecting:
            return ()
        wanted = Counter(target for _, matched in fresh for target in matched)
        return tuple(
            self._routing.ids[target]
            for target, count in wanted.items()
            if target in self._routing.rejecting and count > self._room.get(target, count)
        )

    def _add_row(self, event: Event, targets: str) -> int:
        """Add an event's row, and return its partition."""
        hashed = key_hash(event.bucket, event.key)
        partition = hashed % self._partitions
        states = states_content(event.name, event.version)
        self.rows.append(
            (
                partition,
                self._first + len(self.rows),
                event.id,
                hashed,
                self._now,
                event.name,
                event.bucket,
                event.key,
                event.version,
                comparable(event.sequencer) if states else "",
                event.time,
                targets,
                event.record,
                event.trace,  # not NULL: saves the row's NULL bitmap, and a special case for COPY
            )
        )
        if event.name not in REMOVED and event.bucket not in _NO_BUCKETS:
            self.buckets.add(event.bucket)
        return partition
