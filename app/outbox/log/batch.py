"""Convert the requests of one transaction to rows of the log, and to the answers of the requests."""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from app.config.arn import TargetId
from app.events import sequencer, test_events
from app.events.model import Event
from app.outbox.buckets import REMOVED
from app.outbox.log.routing import Routing

_Key = TypeVar("_Key")


@dataclass(slots=True)
class Receipt:
    """The result of one request's events, which the frontend gets as the response. The guard refused `overtaken`."""

    recorded: int = 0
    repeated: int = 0
    overtaken: int = 0
    matched: dict[TargetId, int] = field(default_factory=dict)
    discarded: dict[TargetId, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueueFull:
    """The whole request was rejected: these targets have `queue_full=reject` and a full queue."""

    targets: tuple[TargetId, ...]


def key_hash(bucket: str, key: str) -> int:
    """Return a signed 64-bit hash of an object; it determines the object's partition and indexes its history."""
    digest = hashlib.blake2b(f"{bucket}/{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def targets_text(ids: Iterable[int]) -> str:
    """Format target ids as the log stores them: `,3,17,`, so that a search for `,3,` finds 3 and never 13."""
    listed = ",".join(map(str, ids))
    return f",{listed}," if listed else ""


class BatchBuilder:
    """Convert the requests of one transaction to rows, without access to the database."""

    def __init__(
        self,
        routing: Routing,
        matched: Mapping[str, tuple[int, ...]],
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
        self._seq = first
        self._partitions = partitions
        self._now = now
        self._overtaken = overtaken
        self.rows: list[dict[str, Any]] = []
        self.recorded: dict[int, int] = {}  # by target, as is `discarded`
        self.discarded: dict[int, int] = {}

    def add(self, events: Sequence[Event]) -> Receipt | QueueFull:
        """Add one request's events, or reject all of them if a target's queue is full."""
        asked = len(events)
        if self._overtaken:
            events = [event for event in events if event.id not in self._overtaken]
        fresh: dict[str, tuple[Event, tuple[int, ...]]] = {}
        for event in events:
            if event.id not in self._known and event.id not in fresh:
                found = self._matched.get(event.id)
                fresh[event.id] = (event, self._routing.targets(event) if found is None else found)
        full = self._refusing(fresh.values())
        if full:
            return QueueFull(full)
        receipt = Receipt(len(fresh), len(events) - len(fresh), asked - len(events))
        self._known.update(fresh)
        for event, matched in fresh.values():
            taken = []
            for target in matched:
                _count(receipt.matched, self._routing.ids[target])
                if self._room.get(target, 1) > 0:
                    self._room[target] = self._room.get(target, 1 << 62) - 1
                    _count(self.recorded, target)
                    taken.append(target)
                else:
                    _count(self.discarded, target)
                    _count(receipt.discarded, self._routing.ids[target])
            self.rows.append(self._row(event, targets_text(taken)))
        return receipt

    def buckets(self) -> set[str]:
        """Return the buckets that exist according to the rows, without the bucket of target tests."""
        return {row["bucket"] for row in self.rows if row["name"] not in REMOVED} - {test_events.TEST_BUCKET}

    def _refusing(self, fresh: Iterable[tuple[Event, tuple[int, ...]]]) -> tuple[TargetId, ...]:
        if not self._routing.rejecting:
            return ()
        wanted = Counter(target for _, matched in fresh for target in matched)
        return tuple(
            self._routing.ids[target]
            for target, count in wanted.items()
            if target in self._routing.rejecting and count > self._room.get(target, count)
        )

    def _row(self, event: Event, targets: str) -> dict[str, Any]:
        hashed = key_hash(event.bucket, event.key)
        states = sequencer.states_content(event.name, event.version)
        row = {
            "partition": hashed % self._partitions,
            "seq": self._seq,
            "id": event.id,
            "key_hash": hashed,
            "received_at": self._now,
            "name": event.name,
            "bucket": event.bucket,
            "key": event.key,
            "version": event.version,
            "sequencer": sequencer.comparable(event.sequencer) if states else "",
            "time": event.time,
            "targets": targets,
            "record": event.record,
            "trace": event.trace,  # not NULL: saves the row's NULL bitmap, and a special case for COPY
        }
        self._seq += 1
        return row


def _count(counts: dict[_Key, int], key: _Key) -> None:
    """Add one. (A `Counter` takes longer to create than a request of one event has to count.)"""
    counts[key] = counts.get(key, 0) + 1
