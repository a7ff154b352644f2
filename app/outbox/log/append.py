"""Append events to the log: many requests in one transaction; record each event once and count it for each target.

A `Batch` has the rows of a transaction, the call of PostgreSQL's function, and the answers of the requests.

The transaction locks the head row first. From then on it is the only writer, so everything it reads (rules, limits,
recorded ids) is exact until the commit. On PostgreSQL a small append is tried in one round trip first.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import chain
from typing import Any

import sqlalchemy as sa

from app.config.arn import TargetId
from app.events.limits import is_larger
from app.events.model import Event, is_posted
from app.events.order import comparable, states_content
from app.events.own_events import SERVICE_BUCKET, TEST_BUCKET
from app.outbox import audit, log_head, tables
from app.outbox.buckets import REMOVED, Remembered
from app.outbox.engine.clock import DatabaseClock
from app.outbox.engine.database import Database
from app.outbox.engine.db_errors import Unstorable
from app.outbox.engine.many_rows import after_deadlocks, chunks, insert
from app.outbox.log import arrivals
from app.outbox.log.routing import Matches, Routing, Targets, load_routing
from app.outbox.policies import APPEND

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


# Built once: building a statement takes about as long as running it in the database.
_SELECT_RECORDED = sa.select(tables.targets.c.id, tables.targets.c.recorded)
_KNOWN_OF_ARRAY = "SELECT id FROM events WHERE id = ANY (%s)"
_SELECT_KNOWN = sa.select(tables.events.c.id).where(tables.events.c.id.in_(sa.bindparam("ids", expanding=True)))


# Given the transaction, under the lock of the log's head, and events that are not in the log yet: the ids of those that
# must not be recorded.
Guard = Callable[[sa.Connection, Sequence[Event]], Collection[str]]
# What else the transaction of one request writes, given its receipt.
Beside = Callable[[sa.Connection, Receipt], None]


class RoutingChanged(Exception):
    """Nothing was recorded: the rules or targets have changed since `Log.routing` was read."""


@dataclass(frozen=True, slots=True)
class _Options:
    """How an append differs from that of events that are routed by the rules: see `Log.append`."""

    promised: bool
    routed: bool
    only_target: TargetId | None
    guard: Guard | None
    action: str
    beside: Beside | None

    @property
    def is_one_trip(self) -> bool:
        """Whether nothing but events and counters is written, and no other than the rules and queues decide."""
        return self.guard is None and not self.action and self.beside is None


class Log:
    """Append to the log. Create one object for each process, and use it from one thread at a time."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # The database's clock, so that events age alike whichever host recorded them, and however its clock is set.
        self._clock = DatabaseClock(database)
        self._routing = Routing.empty()
        self._buckets = Remembered()
        self._settled: dict[int, int] = {}  # lower bounds by target, because `settled` only grows
        self._partitions = 0
        self._changes = 0  # of targets or rules, in a row, each of which an append has met
        # Whether the last append recorded every event for every target: then the next one most likely does, too.
        self._expects_all = False

    @property
    def routing(self) -> Routing:
        """The rules and targets as they were read last; any thread may read it."""
        return self._routing

    def append(
        self,
        requests: Sequence[Sequence[Event]],
        *,
        matches: Matches | None = None,
        promised: bool = False,
        routed: bool = True,
        only_target: TargetId | None = None,
        guard: Guard | None = None,
        action: str = "",
        beside: Beside | None = None,
    ) -> list[Receipt | QueueFull]:
        """Record the events of several requests in one commit, and return an answer for each request, in order.

        An event whose id is already in the log counts as repeated and changes nothing. `promised` requests were already
        answered with 2xx and are not rejected: a target with `queue_full=reject` exceeds its limit for them. Without
        `routed`, the events go to no target, independent of the rules: only listeners receive them. With `only_target`,
        they go to this target alone, independent of the rules, or to none if it is removed or disabled; a request for
        which its queue has no room is rejected as a whole. An event that the `guard` refuses counts as overtaken. With
        an `action` the audit log has an entry of this name for that target, or for each of the buckets. `beside` writes
        in the same commit, unless the only request is rejected; what it raises takes the events back.

        A caller may match the events itself, in any thread, by `routing`, and give the `matches`. If the rules or
        targets have changed meanwhile, `RoutingChanged` is raised and `routing` is the new one; if they change again
        and again, the events are matched here, so that intake goes on.

        Raises `DatabaseUnavailable` or one of `VALUE_ERRORS`, and then nothing was recorded.
        """
        if not any(requests):
            return [Receipt() for _ in requests]
        self._check_sizes(requests)
        return self._record(requests, _Options(promised, routed, only_target, guard, action, beside), matches)

    def _match(self, requests: Sequence[Sequence[Event]], options: _Options) -> Matches:
        routing = self._routing if options.routed else Routing.empty()
        if options.only_target is not None:
            routing = routing.only(options.only_target)
        return routing.match([*chain.from_iterable(requests)])

    def _current(self, matches: Matches) -> Matches:
        """Raise `RoutingChanged` if the matches are not those of the rules and targets as they were read last."""
        if matches.routing is not self._routing:
            raise RoutingChanged
        return matches

    def _in_one_trip(self, batch: Batch, *, promised: bool) -> bool:
        """Record an expected batch, on PostgreSQL, if it is small and as expected. Returns False if it did nothing."""
        if self._database.dialect != "postgresql" or len(batch.rows) > APPEND.max_trip_events:
            return False
        if not self._buckets.include(batch.buckets):
            return False
        ceilings = {
            target: self._routing.limits[target] + self._settled.get(target, 0)
            for target in batch.recorded.keys() & self._routing.limits.keys()
            if not (promised and target in self._routing.rejecting)
        }
        parameters = call_parameters(batch, self._routing.version, ceilings)
        self._expects_all = bool(self._database.in_one_trip(APPEND_EVENTS, parameters))
        return self._expects_all

    def _record(
        self, requests: Sequence[Sequence[Event]], options: _Options, matches: Matches | None = None
    ) -> list[Receipt | QueueFull]:
        """Record the requests by the rules and targets of now, however often those change meanwhile."""
        while True:
            try:
                return after_deadlocks(self._database, partial(self._try, requests, options, matches))
            except RoutingChanged:
                self._read_routing()
                self._changes += 1
                if matches is not None and self._changes < APPEND.max_unlocked_matches:
                    raise
                matches = None

    def _try(
        self, requests: Sequence[Sequence[Event]], options: _Options, matches: Matches | None
    ) -> list[Receipt | QueueFull]:
        """Record the requests in one transaction. Raises `RoutingChanged`."""
        # Match before locking the head, because the lock blocks all other appends.
        current = self._match(requests, options) if matches is None else self._current(matches)
        # So are the rows of all events, unless some are likely to be known, or to find a queue full.
        expected = Batch(requests, current, self._partitions) if self._expects_all else None
        if expected and options.is_one_trip and self._in_one_trip(expected, promised=options.promised):
            return expected.answers
        return self._under_lock(requests, current, expected, options)

    def _under_lock(
        self, requests: Sequence[Sequence[Event]], matches: Matches, batch: Batch | None, options: _Options
    ) -> list[Receipt | QueueFull]:
        """Record the requests, by the expected batch if it is as expected.

        Raises `RoutingChanged` if rules or targets have changed, unless they did so with the appends before, too.
        """
        now, wanted = self._clock(), sum(map(len, requests))
        posted = sum(len(events) for events in requests if is_posted(events))
        with self._database.writing() as connection:
            head = log_head.reserve(connection, wanted, posted=posted)
            if head.version != self._routing.version:
                if self._changes < APPEND.max_unlocked_matches:
                    raise RoutingChanged
                self._use_routing(connection, head)
                matches, batch = self._match(requests, options), None
            events = {event.id: event for events in requests for event in events}
            known = _known(connection, events)
            new = [event for event in events.values() if event.id not in known]
            overtaken = () if options.guard is None else options.guard(connection, new)
            room = self._room(connection, wanted)
            if options.promised:
                room = {target: count for target, count in room.items() if target not in self._routing.rejecting}
            if batch is None or known or overtaken or not batch.fits(room):
                batch = Batch(requests, matches, self._partitions, known=known, overtaken=overtaken, room=room)
            insert(connection, tables.events, batch.complete_rows(head.last_seq - wanted + 1, now))
            _count(connection, batch, head)
            _note_discards(connection, batch, now)
            arrived = (
                arrivals.Arrival(*place, *(head.last_seq - wanted + number for number in numbers))
                for place, numbers in batch.arrivals.items()
            )
            arrivals.record(connection, arrived, complete=head.arrivals_seq == head.last_seq)
            if batch.posted != posted:
                log_head.count_posted(connection, batch.posted - posted)
            if options.action and batch.rows:
                _audit(connection, options, len(batch.rows), sorted({event.bucket for event in new}))
            buckets = self._buckets.new(connection, batch.buckets, now)
            if options.beside is not None and isinstance(receipt := batch.answers[0], Receipt):
                options.beside(connection, receipt)
        self._buckets.add(buckets)
        self._changes = 0
        self._expects_all = len(batch.rows) == wanted and not batch.discarded
        return batch.answers

    def _read_routing(self) -> None:
        """Read targets and rules again without a lock, which takes a second for ten thousand."""
        with self._database.snapshot() as connection:
            self._use_routing(connection, log_head.read(connection))

    def _use_routing(self, connection: sa.Connection, head: log_head.LogHead) -> None:
        self._routing, self._partitions = load_routing(connection, head.version), head.partitions
        self._settled.clear()
        self._buckets.clear()

    def _check_sizes(self, requests: Sequence[Sequence[Event]]) -> None:
        """Raise `Unstorable` for a too large event: the server would disconnect, as if it were unavailable."""
        most = self._database.largest_event
        if most is not None and any(is_larger(event, most) for events in requests for event in events):
            raise Unstorable(f"an event has more than the {most} bytes that the database takes")

    def _room(self, connection: sa.Connection, wanted: int) -> dict[int, int]:
        """Return the remaining queue capacity of each limited target: exact if nearly full, else a lower bound."""
        room: dict[int, int] = {}
        if not self._routing.limits:
            return room
        for row in connection.execute(_SELECT_RECORDED):
            limit = self._routing.limits.get(row.id)
            if limit is None:
                continue
            room[row.id] = limit - (row.recorded - self._settled.get(row.id, 0))
            if room[row.id] < wanted:
                self._settled[row.id] = settled(connection, row.id)
                room[row.id] = limit - (row.recorded - self._settled[row.id])
        return room


def settled(connection: sa.Connection, target_id: int) -> int:
    """Return how many of the events recorded for a target do not count against its queue limit; it never decreases.

    They were delivered, superseded or purged, or are dead letters. Replays do not change the capacity, not even by
    events of theirs that are parked. Reads only the target's cursors, independent of the number of dead letters,
    because it is called under the lock of the log's head.
    """
    c = tables.cursors.c
    freed = sa.select(sa.func.coalesce(sa.func.sum(c.freed), 0)).where(c.target_id == target_id)
    return int(connection.execute(freed).scalar_one())


def _known(connection: sa.Connection, ids: Iterable[str]) -> set[str]:
    """Return those of the ids that are in the log."""
    if (
        connection.dialect.name == "postgresql"
    ):  # an array: parsing a thousand values would take longer than finding them
        return set(connection.exec_driver_sql(_KNOWN_OF_ARRAY, (array(ids),)).scalars())
    known: set[str] = set()
    for some in chunks(list(ids)):
        known.update(connection.execute(_SELECT_KNOWN, {"ids": some}).scalars())
    return known


def _audit(connection: sa.Connection, options: _Options, events: int, buckets: list[str]) -> None:
    if options.only_target is None:
        audit.record_all(connection, options.action, [(f"bucket:{name}", {}) for name in buckets])
    else:
        facts = {"events": events, "buckets": buckets}
        audit.record(connection, options.action, f"target:{options.only_target}", facts)


def _count(connection: sa.Connection, batch: Batch, head: log_head.LogHead) -> None:
    for touched in chunks(tuple(sorted(batch.recorded.keys() | batch.discarded.keys()))):
        counts = {"head": head.last_seq} | {f"recorded_{target}": batch.recorded.get(target, 0) for target in touched}
        counts |= {f"discarded_{target}": batch.discarded.get(target, 0) for target in touched}
        connection.execute(_counting(tuple(touched)), counts)


def _note_discards(connection: sa.Connection, batch: Batch, now: int) -> None:
    """Store when events were discarded for targets, by a statement of its own, as few batches have such events."""
    for touched in chunks(tuple(sorted(batch.discarded))):
        change = tables.targets.update().where(tables.targets.c.id.in_(touched))
        connection.execute(change.values(discarded_at=now))


@lru_cache(maxsize=64)
def _counting(touched: tuple[int, ...]) -> sa.Update:
    """Build the statement that adds to the counters of some targets for which a transaction has events."""
    t = tables.targets.c
    added = {
        name: sa.case(
            {target: sa.bindparam(f"{name}_{target}", type_=sa.BigInteger) for target in touched}, value=t.id, else_=0
        )
        for name in ("recorded", "discarded")
    }
    sums: dict[str, Any] = {name: t[name] + value for name, value in added.items()}
    changes = sums | {"last_seq": sa.bindparam("head", type_=sa.BigInteger)}
    return tables.targets.update().where(t.id.in_(touched)).values(changes)
