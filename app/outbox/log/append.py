"""Append events to the log: many requests in one transaction; record each event once and count it for each target.

The transaction locks the head row first. From then on it is the only writer, so everything it reads (rules, limits,
recorded ids) is exact until the commit.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

import sqlalchemy as sa

from app.config.arn import TargetId
from app.events import sequencer, test_events
from app.events.model import Event
from app.events.stored_size import is_larger
from app.outbox import tables
from app.outbox.buckets import REMOVED, Remembered
from app.outbox.engine.copy_insert import insert
from app.outbox.engine.database import Database, now_ms
from app.outbox.engine.db_errors import Unstorable
from app.outbox.log.routing import Routing, load_routing

_Value = TypeVar("_Value")
_CHUNK = 1000  # values of one IN (…): far below every database's limit

# Built once: building a statement takes about as long as running it in the database.
_HEAD = (tables.log_head.c.last_seq, tables.log_head.c.partitions, tables.log_head.c.version)
_RESERVE = tables.log_head.update().values(last_seq=tables.log_head.c.last_seq + sa.bindparam("wanted"))
_RESERVE_RETURNING, _READ_HEAD = _RESERVE.returning(*_HEAD), sa.select(*_HEAD)
_SELECT_RECORDED = sa.select(tables.targets.c.id, tables.targets.c.recorded)
_SELECT_KNOWN = sa.select(tables.events.c.id).where(tables.events.c.id.in_(sa.bindparam("ids", expanding=True)))


# Given the transaction, under the lock of the log's head, and events that are not in the log yet: the ids of those that
# must not be recorded.
Guard = Callable[[sa.Connection, Sequence[Event]], Collection[str]]


@dataclass(slots=True)
class Receipt:
    """The result of one request's events, which the frontend gets as the response. The guard refused `overtaken`."""

    recorded: int = 0
    repeated: int = 0
    overtaken: int = 0
    matched: Counter[TargetId] = field(default_factory=Counter)
    discarded: Counter[TargetId] = field(default_factory=Counter)


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


class Log:
    """Append to the log. Create one object for each process, and use it from one thread at a time."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._routing = Routing.empty()
        self._buckets = Remembered()
        self._settled: dict[int, int] = {}  # lower bounds by target, because `settled` only grows

    def append(
        self,
        requests: Sequence[Sequence[Event]],
        *,
        promised: bool = False,
        routed: bool = True,
        only_target: TargetId | None = None,
        guard: Guard | None = None,
    ) -> list[Receipt | QueueFull]:
        """Record the events of several requests in one commit, and return an answer for each request, in order.

        An event whose id is already in the log counts as repeated and changes nothing. `promised` requests were already
        answered with 2xx and are not rejected: a target with `queue_full=reject` exceeds its limit for them. Without
        `routed`, the events go to no target, independent of the rules: only listeners receive them. With `only_target`,
        they go to this target alone, independent of the rules, or to none if it is removed or disabled; a request for
        which its queue has no room is rejected as a whole. An event that the `guard` refuses counts as overtaken.

        Raises `DatabaseUnavailable` or one of `VALUE_ERRORS`, and then nothing was recorded.
        """
        wanted = sum(map(len, requests))
        if not wanted:
            return [Receipt() for _ in requests]
        self._check_sizes(requests)
        # Match before locking the head, because the lock blocks all other appends; redone if the rules have changed.
        expected = self._routing
        by_rules = routed and only_target is None
        matched = {event.id: expected.targets(event) for events in requests for event in events} if by_rules else {}
        with self._database.writing() as connection:
            first, partitions = self._reserve(connection, wanted)
            if self._routing is not expected:
                matched.clear()
            by_id = {event.id: event for events in requests for event in events}
            known = _known(connection, by_id)
            fresh = [event for event in by_id.values() if event.id not in known]
            overtaken = guard(connection, fresh) if guard is not None else ()
            room = self._room(connection, wanted)
            if promised:
                room = {target: left for target, left in room.items() if target not in self._routing.rejecting}
            routing = self._routing if routed else Routing.empty()
            if only_target is not None:
                routing = routing.only(only_target)
            batch = BatchBuilder(routing, matched, known, room, first, partitions, now_ms(), overtaken)
            answers = [batch.take(events) for events in requests]
            insert(connection, tables.events, batch.rows)
            _count(connection, batch)
            buckets = self._buckets.new(connection, batch.buckets(), now_ms())
        self._buckets.add(buckets)
        return answers

    def _check_sizes(self, requests: Sequence[Sequence[Event]]) -> None:
        """Raise `Unstorable` for a too large event: the server would disconnect, as if it were unavailable."""
        most = self._database.largest_event
        if most is not None and any(is_larger(event, most) for events in requests for event in events):
            raise Unstorable(f"an event has more than the {most} bytes that the database takes")

    def _reserve(self, connection: sa.Connection, wanted: int) -> tuple[int, int]:
        if connection.dialect.update_returning:
            row = connection.execute(_RESERVE_RETURNING, {"wanted": wanted}).one()
        else:
            connection.execute(_RESERVE, {"wanted": wanted})
            row = connection.execute(_READ_HEAD).one()
        if row.version != self._routing.version:
            self._routing = load_routing(connection, row.version)
            self._settled.clear()
            self._buckets.clear()
        return row.last_seq - wanted + 1, row.partitions

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
        self.recorded: Counter[int] = Counter()
        self.discarded: Counter[int] = Counter()

    def take(self, events: Sequence[Event]) -> Receipt | QueueFull:
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
                receipt.matched[self._routing.ids[target]] += 1
                if self._room.get(target, 1) > 0:
                    self._room[target] = self._room.get(target, 1 << 62) - 1
                    self.recorded[target] += 1
                    taken.append(target)
                else:
                    self.discarded[target] += 1
                    receipt.discarded[self._routing.ids[target]] += 1
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


def _known(connection: sa.Connection, ids: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for some in chunks(list(ids)):
        found.update(connection.execute(_SELECT_KNOWN, {"ids": some}).scalars())
    return found


def _count(connection: sa.Connection, batch: BatchBuilder) -> None:
    touched = tuple(sorted(batch.recorded.keys() | batch.discarded.keys()))
    if touched:
        counts = {f"recorded_{target}": batch.recorded[target] for target in touched}
        counts |= {f"discarded_{target}": batch.discarded[target] for target in touched}
        connection.execute(_counting(touched), counts)


@lru_cache(maxsize=64)
def _counting(touched: tuple[int, ...]) -> sa.Update:
    """Build one statement that updates all targets for which a transaction has events."""
    t = tables.targets.c
    added = {
        name: sa.case(
            {target: sa.bindparam(f"{name}_{target}", type_=sa.BigInteger) for target in touched}, value=t.id, else_=0
        )
        for name in ("recorded", "discarded")
    }
    sums = {name: t[name] + value for name, value in added.items()}
    return tables.targets.update().where(t.id.in_(touched)).values(sums)


def chunks(values: Sequence[_Value]) -> Iterator[Sequence[_Value]]:
    """Yield slices that are short enough for one IN (…)."""
    for start in range(0, len(values), _CHUNK):
        yield values[start : start + _CHUNK]
