"""Append events to the log: many requests in one transaction; record each event once and count it for each target.

The transaction locks the head row first. From then on it is the only writer, so everything it reads (rules, limits,
recorded ids) is exact until the commit. On PostgreSQL an append is tried in one round trip first (`pg_append`).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import TypeVar

import sqlalchemy as sa

from app.config.arn import TargetId
from app.events.model import Event
from app.events.stored_size import is_larger
from app.outbox import audit, log_head, tables
from app.outbox.buckets import Remembered
from app.outbox.engine.clock import DatabaseClock
from app.outbox.engine.copy_insert import insert
from app.outbox.engine.database import Database
from app.outbox.engine.db_errors import Unstorable
from app.outbox.log.batch import BatchBuilder, QueueFull, Receipt
from app.outbox.log.pg_append import MOST_VALUES, append_at_once
from app.outbox.log.routing import Routing, load_routing

_Value = TypeVar("_Value")
_MATCHED_AGAIN = 3  # times without the lock
_CHUNK = 1000  # values of one IN (…): far below every database's limit

# Built once: building a statement takes about as long as running it in the database.
_SELECT_RECORDED = sa.select(tables.targets.c.id, tables.targets.c.recorded)
_SELECT_KNOWN = sa.select(tables.events.c.id).where(tables.events.c.id.in_(sa.bindparam("ids", expanding=True)))


# Given the transaction, under the lock of the log's head, and events that are not in the log yet: the ids of those that
# must not be recorded.
Guard = Callable[[sa.Connection, Sequence[Event]], Collection[str]]


class RoutingChanged(Exception):
    """Nothing was recorded: the rules or targets have changed since `Log.routing` was read."""


class Log:
    """Append to the log. Create one object for each process, and use it from one thread at a time.

    With `matched_before`, the callers match events themselves (`Routing.matching` of `routing`, which any thread may
    read); if the rules or targets have changed meanwhile, `append` raises `RoutingChanged` and has the new ones.
    """

    def __init__(self, database: Database, *, matched_before: bool = False) -> None:
        self._matched_before = matched_before
        self._database = database
        # The database's clock, so that events age alike whichever host recorded them, and however its clock is set.
        self._clock = DatabaseClock(database)
        self._routing = Routing.empty()
        self._buckets = Remembered()
        self._settled: dict[int, int] = {}  # lower bounds by target, because `settled` only grows
        self._partitions = 0
        # Whether the last append recorded every event for every target: then the next one will most likely, too.
        self._usual = False

    @property
    def routing(self) -> Routing:
        """The rules and targets as they were read last."""
        return self._routing

    def append(
        self,
        requests: Sequence[Sequence[Event]],
        *,
        promised: bool = False,
        routed: bool = True,
        only_target: TargetId | None = None,
        guard: Guard | None = None,
        action: str = "",
    ) -> list[Receipt | QueueFull]:
        """Record the events of several requests in one commit, and return an answer for each request, in order.

        An event whose id is already in the log counts as repeated and changes nothing. `promised` requests were already
        answered with 2xx and are not rejected: a target with `queue_full=reject` exceeds its limit for them. Without
        `routed`, the events go to no target, independent of the rules: only listeners receive them. With `only_target`,
        they go to this target alone, independent of the rules, or to none if it is removed or disabled; a request for
        which its queue has no room is rejected as a whole. An event that the `guard` refuses counts as overtaken. With
        an `action` the audit log has an entry of this name for that target, or for each of the buckets.

        Raises `DatabaseUnavailable` or one of `VALUE_ERRORS`, and then nothing was recorded.
        """
        if not any(requests):
            return [Receipt() for _ in requests]
        self._check_sizes(requests)
        routing = self._routing_for(routed, only_target)
        if guard is None and not action and self._usual and self._database.dialect == "postgresql":
            batch = BatchBuilder(routing, {}, (), {}, 0, self._partitions, self._clock())
            answers = [batch.add(events) for events in requests]
            if self._append_at_once(batch, promised):
                return answers
        append = partial(self._append_under_lock, requests, promised, routed, only_target, guard, action)
        for _ in range(_MATCHED_AGAIN):
            try:
                return append(reads_changes=False)
            except RoutingChanged:
                self._read_routing()
                if self._matched_before:
                    raise
        return append(reads_changes=True)

    def append_within(self, events: Sequence[Event], seconds: float) -> Receipt | QueueFull | None:
        """Record one request's events if one round trip is enough; it takes that many seconds, and one more, at most.

        None means that nothing was recorded, because more is needed, and so does `ConnectionBusy`. Raises what `append`
        raises, but after an error it is unknown whether the events were recorded.
        """
        if not self._usual or self._database.dialect != "postgresql" or not 0 < len(events) <= MOST_VALUES:
            return None
        if (now := self._clock.cached()) is None:
            return None
        self._check_sizes([events])
        batch = BatchBuilder(self._routing, {}, (), {}, 0, self._partitions, now)
        answer = batch.add(events)
        if self._append_at_once(batch, promised=False, patience=seconds):
            return answer
        self._usual = False  # no other attempt before the lock
        return None

    def _append_at_once(self, batch: BatchBuilder, promised: bool, patience: float | None = None) -> bool:
        """Record a batch for which every event was taken to be new, and every queue to have room, if that is so."""
        if not self._buckets.include(batch.buckets):
            return False
        ceilings = {
            target: self._routing.limits[target] + self._settled.get(target, 0)
            for target in batch.recorded.keys() & self._routing.limits.keys()
            if not (promised and target in self._routing.rejecting)
        }
        return append_at_once(
            self._database,
            batch.rows,
            version=self._routing.version,
            recorded=batch.recorded,
            ceilings=ceilings,
            patience=patience,
        )

    def _append_under_lock(
        self,
        requests: Sequence[Sequence[Event]],
        promised: bool,
        routed: bool,
        only_target: TargetId | None,
        guard: Guard | None,
        action: str,
        *,
        reads_changes: bool,
    ) -> list[Receipt | QueueFull]:
        """Record the requests. Raises `RoutingChanged` unless it `reads_changes` while it holds the lock."""
        wanted, routing = sum(map(len, requests)), self._routing_for(routed, only_target)
        # Match before locking the head, because the lock blocks all other appends, and again if the rules have changed:
        # before the lock, unless they change all the time.
        matched = {event.id: routing.targets(event) for events in requests for event in events}
        now = self._clock()
        with self._database.writing() as connection:
            first, changed = self._reserve(connection, wanted)
            if changed and not reads_changes:
                raise RoutingChanged
            if changed:
                self._use_routing(connection, log_head.read(connection))
                routing, matched = self._routing_for(routed, only_target), {}
            by_id = {event.id: event for events in requests for event in events}
            known = _known(connection, by_id)
            fresh = [event for event in by_id.values() if event.id not in known]
            overtaken = guard(connection, fresh) if guard is not None else ()
            room = self._room(connection, wanted)
            if promised:
                room = {target: left for target, left in room.items() if target not in self._routing.rejecting}
            batch = BatchBuilder(routing, matched, known, room, first, self._partitions, now, overtaken)
            answers = [batch.add(events) for events in requests]
            insert(connection, tables.events, batch.rows)
            _count(connection, batch)
            if action and batch.rows:
                names = sorted({event.bucket for event in fresh})
                if only_target is None:
                    audit.record_all(connection, action, [(f"bucket:{name}", {}) for name in names])
                else:
                    facts = {"events": len(batch.rows), "buckets": names}
                    audit.record(connection, action, f"target:{only_target}", facts)
            buckets = self._buckets.new(connection, batch.buckets, now)
        self._buckets.add(buckets)
        self._usual = len(batch.rows) == wanted and not batch.discarded
        return answers

    def _read_routing(self) -> None:
        """Read targets and rules again without a lock, which takes a second for ten thousand."""
        with self._database.snapshot() as connection:
            self._use_routing(connection, log_head.read(connection))

    def _use_routing(self, connection: sa.Connection, head: log_head.LogHead) -> None:
        self._routing, self._partitions = load_routing(connection, head.version), head.partitions
        self._settled.clear()
        self._buckets.clear()

    def _routing_for(self, routed: bool, only_target: TargetId | None) -> Routing:
        if not routed:
            return Routing.empty()
        return self._routing if only_target is None else self._routing.only(only_target)

    def _check_sizes(self, requests: Sequence[Sequence[Event]]) -> None:
        """Raise `Unstorable` for a too large event: the server would disconnect, as if it were unavailable."""
        most = self._database.largest_event
        if most is not None and any(is_larger(event, most) for events in requests for event in events):
            raise Unstorable(f"an event has more than the {most} bytes that the database takes")

    def _reserve(self, connection: sa.Connection, wanted: int) -> tuple[int, bool]:
        """Lock the head, and return the first of the reserved numbers, and whether targets or rules have changed."""
        head = log_head.reserve(connection, wanted)
        return head.last_seq - wanted + 1, head.version != self._routing.version

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
    found: set[str] = set()
    for some in chunks(list(ids)):
        found.update(connection.execute(_SELECT_KNOWN, {"ids": some}).scalars())
    return found


def _count(connection: sa.Connection, batch: BatchBuilder) -> None:
    touched = tuple(sorted(batch.recorded.keys() | batch.discarded.keys()))
    if touched:
        counts = {f"recorded_{target}": batch.recorded.get(target, 0) for target in touched}
        counts |= {f"discarded_{target}": batch.discarded.get(target, 0) for target in touched}
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


def chunks(values: Sequence[_Value], most: int = _CHUNK) -> Iterator[Sequence[_Value]]:
    """Yield slices of at most so many values; without a number short enough for one IN (…)."""
    for start in range(0, len(values), most):
        yield values[start : start + most]
