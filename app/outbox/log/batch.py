"""Convert the requests of a transaction to rows of the log, to a call on PostgreSQL, and to the requests' answers."""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from app.config.arn import TargetId
from app.events.model import Event
from app.events.order import comparable, states_content
from app.events.origin import is_posted
from app.events.own_events import SERVICE_BUCKET, TEST_BUCKET
from app.outbox import tables
from app.outbox.buckets import REMOVED
from app.outbox.log.routing import Matches, Targets

_NO_BUCKETS = (TEST_BUCKET, SERVICE_BUCKET)
_COLUMNS = [column.name for column in tables.events.columns if column.name not in ("seq", "received_at")]
# The JSON of records has no line break. In an array each of its quotes would be escaped, by us and for the driver, and
# read twice by the server, which took a quarter of the time of an append.
_RECORD = _COLUMNS.index("record")
_VALUES = ["string_to_array(%s, E'\\n')" if number == _RECORD else "%s" for number in range(len(_COLUMNS))]
# PostgreSQL's function by which an append that is as nearly all are takes one round trip; a migration creates it.
# It inserts the rows of a batch without discarded events, adds them to the targets' counters and arrivals, and commits.
# It returns false, and has recorded nothing, if the version is not that of the log's head, if one of the events is in
# the log already, or if the number recorded for a target would exceed its value in `ceilings`. The log's head is locked
# as for any other append, and so are the targets.
APPEND_EVENTS = f"SELECT append_events({', '.join(['%s'] * 9 + _VALUES)})"


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

    def add(self, other: "Receipt") -> None:
        """Add the result of more events."""
        self.recorded += other.recorded
        self.repeated += other.repeated
        self.overtaken += other.overtaken
        for counts, more in ((self.matched, other.matched), (self.discarded, other.discarded)):
            for target, number in more.items():
                counts[target] = counts.get(target, 0) + number
        for target, partitions in other.due.items():
            self.due.setdefault(target, set()).update(partitions)


@dataclass(frozen=True, slots=True)
class TooSmall:
    """A target whose queue would have no room for the events of one request if it were empty."""

    target: TargetId
    limit: int
    events: int

    def __str__(self) -> str:
        return f"{self.target} ({self.events} events, queue_limit {self.limit})"


@dataclass(frozen=True, slots=True)
class QueueFull:
    """The whole request was rejected: these targets have `queue_full=reject` and a full queue.

    For those `too_small` it can never be recorded as it is.
    """

    targets: tuple[TargetId, ...]
    too_small: tuple[TooSmall, ...] = field(default=(), compare=False)


def key_hash(bucket: str, key: str) -> int:
    """Return a signed 64-bit hash of an object; it determines the object's partition and indexes its history."""
    digest = hashlib.blake2b(f"{bucket}/{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


@lru_cache(maxsize=1024)  # most events of a request have the same, and there may be thousands of targets
def targets_text(matched: Targets, taken: Targets) -> str:
    """Format target ids as the log stores them: `,3,17,`, so that a search for `,3,` finds 3 and never 13.

    Those of the matched targets that are not taken, because their queues are full, follow as negative numbers: the
    event does not go to them.
    """
    kept = frozenset(taken)
    listed = ",".join(map(str, (*taken, *(-target for target in matched if target not in kept))))
    return f",{listed}," if listed else ""


class Batch:
    """The rows, counts and answers of requests that share a transaction; it does not access the database.

    Unless it is told which events are `known` (in the log already) or `overtaken` (refused by the guard), by event id,
    and how many more events the targets have `room` for, it takes every event to be new and every queue to have room.
    """

    def __init__(
        self,
        requests: Iterable[Sequence[Event]],
        matches: Matches,
        partitions: int,
        *,
        known: Collection[str] = (),
        overtaken: Collection[str] = (),
        room: Mapping[int, int] | None = None,
    ) -> None:
        self._routing, self._targets = matches
        self._partitions = partitions
        self._known = set(known)
        self._overtaken = overtaken
        self._room = dict(room or {})
        self.rows: list[tuple[Any, ...]] = []  # in the order of the table's columns, without `seq` and `received_at`
        self.buckets: set[str] = set()  # those that exist according to the rows, without our own
        self.recorded: dict[int, int] = {}  # by target, as is `discarded`
        self.discarded: dict[int, int] = {}
        self.posted = 0  # of the rows, those that requests have brought
        # By target and partition, the first and the last of the rows, counted from 1.
        self.arrivals: dict[tuple[int, int], tuple[int, int]] = {}
        self.answers = [self._add_request(events) for events in requests]

    def fits(self, room: Mapping[int, int]) -> bool:
        """Return whether the targets have room for what the batch records for them."""
        return all(count <= room.get(target, count) for target, count in self.recorded.items())

    def complete_rows(self, first_seq: int, received_at: int) -> list[tuple[Any, ...]]:
        """Return the rows with consecutive seqs and the time (ms), in the order of the table's columns."""
        return [
            (partition, seq, event_id, hashed, received_at, *others)
            for seq, (partition, event_id, hashed, *others) in enumerate(self.rows, first_seq)
        ]

    def _add_request(self, events: Sequence[Event]) -> Receipt | QueueFull:
        """Add one request's events, or reject all of them if a target's queue is full."""
        requested = len(events)
        if self._overtaken:
            events = [event for event in events if event.id not in self._overtaken]
        new: dict[str, Event] = {}
        for event in events:
            if event.id not in self._known:
                new.setdefault(event.id, event)
        full = self._full_queues(new)
        if full is not None:
            return full
        receipt = Receipt(len(new), len(events) - len(new), requested - len(events))
        self._known.update(new)
        if is_posted(events):
            self.posted += len(new)
        counts: dict[tuple[Targets, Targets], int] = {}
        due: dict[tuple[Targets, int], tuple[int, int]] = {}
        for event in new.values():
            matched = self._targets[event.id]
            taken = self._take_room(matched) if self._room else matched
            counts[matched, taken] = counts.get((matched, taken), 0) + 1
            place = taken, self._add_row(event, targets_text(matched, taken))
            number = len(self.rows)
            due[place] = due.get(place, (number, number))[0], number
        for (taken, partition), (first, last) in due.items():
            for target in taken:
                receipt.due.setdefault(self._routing.ids[target], set()).add(partition)
                known = self.arrivals.get((target, partition), (first, last))
                self.arrivals[target, partition] = min(known[0], first), max(known[1], last)
        for (matched, taken), number in counts.items():
            kept = frozenset(taken)
            for target in matched:
                arn = self._routing.ids[target]
                receipt.matched[arn] = receipt.matched.get(arn, 0) + number
                if target in kept:
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

    def _full_queues(self, event_ids: Iterable[str]) -> QueueFull | None:
        """Return the targets that reject requests and have no room for these events; None if there are none."""
        rejecting, limits = self._routing.rejecting, self._routing.limits
        if not rejecting:
            return None
        wanted = Counter(target for event_id in event_ids for target in self._targets[event_id] if target in rejecting)
        full = {target: count for target, count in wanted.items() if count > self._room.get(target, count)}
        if not full:
            return None
        ids = self._routing.ids
        too_small = [
            TooSmall(ids[target], limits[target], count)
            for target, count in full.items()
            if count > limits.get(target, count)
        ]
        return QueueFull(tuple(ids[target] for target in full), tuple(too_small))

    def _add_row(self, event: Event, targets: str) -> int:
        """Add an event's row, and return its partition."""
        hashed = key_hash(event.bucket, event.key)
        partition = hashed % self._partitions
        states = states_content(event.name, event.version)
        self.rows.append(
            (
                partition,
                event.id,
                hashed,
                event.name,
                event.bucket,
                event.key,
                event.version,
                comparable(event.sequencer) if states else "",
                event.time,
                targets,
                event.record,
                event.trace,  # not NULL: saves the row's NULL bitmap, and a special case for COPY
                event.origin,
            )
        )
        if event.name not in REMOVED and event.bucket not in _NO_BUCKETS:
            self.buckets.add(event.bucket)
        return partition


def call_parameters(batch: Batch, version: int, ceilings: Mapping[int, int]) -> list[object]:
    """Return the parameters of `APPEND_EVENTS`."""
    recorded, arrivals = batch.recorded, batch.arrivals
    return [
        version,
        array(recorded),
        array(recorded.values()),
        array(ceilings.get(target, "NULL") for target in recorded) if ceilings else None,
        batch.posted,
        array(target for target, _ in arrivals),
        array(partition for _, partition in arrivals),
        array(first for first, _ in arrivals.values()),
        array(last for _, last in arrivals.values()),
        *map(_column, range(len(_COLUMNS)), zip(*batch.rows, strict=True)),
    ]


def _column(number: int, values: Sequence[Any]) -> str:
    if number == _RECORD:
        return "\n".join(values)
    return _text_array(values) if isinstance(values[0], str) else array(values)


def array(values: Iterable[object]) -> str:
    """Format numbers or hexadecimal ids as an array; what the driver makes of a list is parsed value by value."""
    return f"{{{','.join(map(str, values))}}}"


def _text_array(values: Sequence[str]) -> str:
    together = "".join(values)
    if '"' in together or "\\" in together:  # rare
        values = [value.replace("\\", "\\\\").replace('"', '\\"') for value in values]
    return '{"' + '","'.join(values) + '"}'
