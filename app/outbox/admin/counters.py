"""Read and audit the counters of targets, their events by delivery state, and read the state of their partitions.

The counters must balance at any time:

matched  = recorded + discarded
recorded = delivered + superseded + pending + parked + dead + purged

An event that a replay delivers again counts as recorded once more, when the replay reaches it.

What waits in each partition is read in bounded time, whatever waits: of each the events of as many sequence numbers as
one search reads, and `MAX_COUNTED_EVENTS` events and parked ones.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox import tables
from app.outbox.column_values import NEVER, REVOKED, WHOLE_LOG
from app.outbox.declared import StoredTarget, find_target, stored_target
from app.outbox.delivery.availability import with_failing
from app.outbox.delivery.due_work import PartitionOf, first_parked
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database
from app.outbox.engine.many_rows import chunks, own_cursors, search_each
from app.outbox.log import arrivals
from app.outbox.log.arrivals import CURSOR, CURSORS, IN_WINDOW, LogWindow, unread, unread_of_targets
from app.outbox.log.reading import is_for

# The counters that are sums over a target's cursors, and their columns.
_SUMS = {
    "delivered": "delivered",
    "superseded": "superseded",
    "failed": "failed",
    "dead_lettered": "dead",
    "replayed": "replayed",
    "freed": "freed",
}
_FIRST_EVENT = f"SELECT {{target_id}}, {{partition}}, seq {IN_WINDOW} LIMIT 1"
_LAST_BEFORE = "SELECT {target_id}, {partition}, MAX(seq) FROM events WHERE {column} = {partition} AND seq <= {after}"
_MAX_WINDOWS = 10  # windows of the log that are searched for the oldest pending event


@dataclass(frozen=True, slots=True)
class TargetCounters:
    """One target's counters. `oldest` is when its oldest undelivered event was recorded (ms), 0 if there is none."""

    target: TargetId
    recorded: int
    delivered: int
    superseded: int
    parked: int
    dead: int
    purged: int
    discarded: int
    oldest: int
    dead_lettered: int  # in total, including those replayed or deleted since
    queued: int  # undelivered events that count against its queue_limit: none that a replay delivers again

    @property
    def pending(self) -> int:
        """Events recorded and not yet attempted, also because the target is unavailable."""
        return self.recorded - self.delivered - self.superseded - self.parked - self.dead - self.purged

    @property
    def undelivered(self) -> int:
        """Events recorded and not yet delivered: pending and parked (the backlog)."""
        return self.pending + self.parked

    @property
    def matched(self) -> int:
        """All events that matched a rule of the target."""
        return self.recorded + self.discarded


@dataclass(frozen=True, slots=True)
class TargetStatus:
    """A target, with what is known of it if it is failing, and its counters, read at the same moment."""

    stored: StoredTarget
    counters: TargetCounters


def read_counters(
    connection: sa.Connection, target_id: int | None = None, *, oldest: bool = True
) -> list[TargetCounters]:
    """Return the counters of every target, or of one; consistent if the connection's transaction reads a snapshot.

    Without `oldest`, that member is 0, which saves the search for it.
    """
    return [status.counters for status in _statuses(connection, target_id, oldest=oldest)]


def read_status(connection: sa.Connection, target: TargetId | None = None) -> list[TargetStatus]:
    """Return every target, or one, with its counters, sorted by type and name. Raises `UnknownTarget`."""
    target_id = None if target is None else find_target(connection, target).row_id
    statuses = _statuses(connection, target_id, oldest=True)
    targets = with_failing(connection, [status.stored for status in statuses])
    return [replace(status, stored=stored) for status, stored in zip(statuses, targets, strict=True)]


def _statuses(connection: sa.Connection, target_id: int | None, *, oldest: bool) -> list[TargetStatus]:
    rows = connection.execute(_select_status(target_id)).all()
    statuses = {row.id: TargetStatus(stored_target(row), _counters(row)) for row in rows}
    counters = {row_id: status.counters for row_id, status in statuses.items() if oldest}
    pending, parked = (
        {row_id for row_id, one in counters.items() if getattr(one, name)} for name in ("pending", "parked")
    )
    for row_id, at in oldest_undelivered(connection, pending, parked).items():
        statuses[row_id] = replace(statuses[row_id], counters=replace(statuses[row_id].counters, oldest=at))
    return list(statuses.values())


def cursor_sums(target_id: int | None = None) -> sa.Subquery:
    """Build the query for what the cursors of each target, or of one, have counted; without reading events.

    Its columns are `target_id` and the sums `delivered`, `superseded`, `failed`, `dead_lettered`, `replayed`, `freed`.
    """
    c = tables.cursors.c
    return _by_target(c.target_id, {name: sa.func.sum(c[column]) for name, column in _SUMS.items()}, target_id)


def _by_target(
    of_target: sa.Column[int], values: Mapping[str, sa.ColumnElement[int]], target_id: int | None
) -> sa.Subquery:
    grouped = sa.select(of_target, *(value.label(name) for name, value in values.items())).group_by(of_target)
    return (grouped if target_id is None else grouped.where(of_target == target_id)).subquery()


def _select_status(target_id: int | None) -> sa.Select[Any]:
    """Build the query for every target, or one, with the sums over its cursors and the numbers of its other rows."""
    t = tables.targets.c
    joined: sa.FromClause = tables.targets
    columns: list[sa.ColumnElement[int]] = []
    for counts in (
        cursor_sums(target_id),
        _by_target(tables.parked.c.target_id, {"parked": sa.func.count()}, target_id),
        _by_target(tables.dead_letters.c.target_id, {"dead": sa.func.count()}, target_id),
    ):
        joined = joined.outerjoin(counts, counts.c.target_id == t.id)
        columns += [sa.func.coalesce(column, 0).label(name) for name, column in counts.c.items() if name != "target_id"]
    query = sa.select(tables.targets, *columns).select_from(joined).order_by(t.type, t.name)
    return query if target_id is None else query.where(t.id == target_id)


def _counters(row: Any) -> TargetCounters:
    return TargetCounters(
        target=TargetId(row.type, row.name),
        recorded=row.recorded + int(row.replayed),
        delivered=int(row.delivered),
        superseded=int(row.superseded),
        parked=row.parked,
        dead=row.dead,
        purged=row.purged,
        discarded=row.discarded,
        oldest=0,
        dead_lettered=int(row.dead_lettered),
        queued=row.recorded - int(row.freed),
    )


@dataclass(frozen=True, slots=True)
class Audit:
    """One target's counters, compared with its events counted in the log."""

    counters: TargetCounters
    counted: int | None  # events in the log after its cursors; None: not counted

    @property
    def difference(self) -> int:
        """Pending events by the counters minus those counted; if not 0, the counters do not balance."""
        return 0 if self.counted is None else self.counters.pending - self.counted


def audit(database: Database, *, most: int | None = None) -> list[Audit]:
    """Count the pending events in the log itself and compare them with the counters.

    Reads a snapshot, so that concurrent deliveries do not cause a difference. The cost grows with the backlog; with
    `most`, targets after whose cursors the log has more sequence numbers than that, in all partitions together, are not
    counted.
    """
    with database.snapshot() as connection:
        audits = []
        for status in _statuses(connection, None, oldest=False):
            target_id = status.stored.row_id
            windows = unread_of_targets(connection, [target_id])
            ahead = sum(window.until - window.after for window in windows)
            counted = None if most and ahead > most else _pending(connection, windows)
            audits.append(Audit(status.counters, counted))
        return audits


def _pending(connection: sa.Connection, windows: Iterable[LogWindow]) -> int:
    """Count a target's events in parts of the log, one by one."""
    e = tables.events.c
    events = sa.select(sa.func.count()).select_from(tables.events)
    # One query for each: MySQL and MariaDB start an index scan at a seq only if it is a constant, not joined.
    return sum(
        connection.execute(
            events.where(e.partition == partition, e.seq > after, e.seq <= until, is_for(target_id))
        ).scalar_one()
        for target_id, partition, after, until in windows
    )


def oldest_undelivered(connection: sa.Connection, pending: Collection[int], parked: Collection[int]) -> dict[int, int]:
    """Return when the oldest undelivered event of each target was received (ms); targets without one are left out.

    It is the oldest of the first pending and the first parked one of each partition, of targets (by row id) that may
    have some. A few statements are enough for many targets.
    """
    target_ids = {*pending, *parked}
    if not target_ids:
        return {}
    c = tables.cursors.c
    query = sa.select(*CURSOR).select_from(CURSORS).where(c.replay_id == WHOLE_LOG, c.target_id.in_(target_ids))
    cursors = connection.execute(query.order_by(c.target_id, c.partition)).all()
    windows = [window for row in cursors if row.target_id in pending if (window := unread(row)) is not None]
    places = (PartitionOf(row.target_id, row.partition) for row in cursors if row.target_id in parked)
    first = [_Event(*place, seq) for place, seq in first_parked(connection, places).items()]
    first += _first_pending(connection, windows)
    received = _received(connection, sorted({(partition, seq) for _, partition, seq in first}))
    oldest: dict[int, int] = {}
    for target_id, partition, seq in first:
        at = received.get((partition, seq))
        if at is not None:
            oldest[target_id] = min(at, oldest.get(target_id, at))
    return oldest


class _Event(NamedTuple):
    target_id: int
    partition: int
    seq: int


def _first_pending(connection: sa.Connection, windows: Sequence[LogWindow]) -> Iterator[_Event]:
    """Yield the first pending event of each partition of a target, if it has any.

    If very many events of other targets precede it, it may not be found. Then the last event up to the end of the
    search is returned instead, which is older than any pending event.
    """
    for _ in range(_MAX_WINDOWS):
        parts = [window.first_part for window in windows]
        found = [_Event(*row) for row in search_each(connection, _FIRST_EVENT, parts)]
        yield from found
        # Of a target with one no other partition is searched on: what those have is later, unless their cursors lag.
        with_one = {event.target_id for event in found}
        windows = [
            window._replace(after=part.until)
            for window, part in zip(windows, parts, strict=True)
            if window.target_id not in with_one and part.until < window.until
        ]
        if not windows:
            return
    yield from (_Event(*row) for row in search_each(connection, _LAST_BEFORE, windows) if row[2] is not None)


def _received(connection: sa.Connection, events: Sequence[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """Return when events, by partition and seq, were received (ms); they are sorted."""
    e = tables.events.c
    received: dict[tuple[int, int], int] = {}
    for some in chunks(events):
        partitions = groupby(some, itemgetter(0))
        places = [sa.and_(e.partition == place, e.seq.in_([seq for _, seq in of_it])) for place, of_it in partitions]
        rows = connection.execute(sa.select(e.partition, e.seq, e.received_at).where(sa.or_(*places)))
        received |= {(row.partition, row.seq): row.received_at for row in rows}
    return received


MAX_COUNTED_EVENTS = 1000  # in a partition, and as many parked ones
FREE, LEASED = "free", "leased"
LEASE_STATES = (FREE, LEASED, REVOKED)


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition of a target.

    `pending` and `parked` are counted up to `MAX_COUNTED_EVENTS`; `more` says that there may be more of either. One
    `parked` event of each object is retried, so `parked_objects` is the number of objects. `lease` is one of
    `LEASE_STATES`; a leased partition has a `holder`, `HOST:PID`, until `leased_until` (ms), which it renews while it
    works.
    """

    partition: int
    position: int
    pending: int
    parked: int
    parked_objects: int
    more: bool
    lease: str
    holder: str
    leased_until: int


def read_partitions(database: Database, target: TargetId) -> list[PartitionState]:
    """Return the partitions of a target in the order of their numbers. Raises `UnknownTarget`."""
    c = tables.cursors.c
    with database.snapshot() as connection:
        target_id = find_target(connection, target).row_id
        now = database_now(connection)
        cursors = connection.execute(
            sa.select(c.lease_token, c.leased_until, *arrivals.CURSOR)
            .select_from(arrivals.CURSORS)
            .where(own_cursors(target_id))
            .order_by(c.partition)
        ).all()
        windows = {
            cursor.partition: arrivals.unread(cursor)
            or LogWindow(target_id, cursor.partition, cursor.head, cursor.head)
            for cursor in cursors
        }
        counts = {row.place: row for row in _count(connection, windows.values())}
    return [_state(cursor, windows[cursor.partition], counts[cursor.partition], now) for cursor in cursors]


def _state(cursor: Any, window: LogWindow, counts: Any, now: int) -> PartitionState:
    lease, holder = lease_of(cursor.lease_token, cursor.leased_until, now)
    return PartitionState(
        partition=cursor.partition,
        position=window.after,
        pending=min(counts.pending, MAX_COUNTED_EVENTS),
        parked=min(counts.parked, MAX_COUNTED_EVENTS),
        parked_objects=min(counts.objects, MAX_COUNTED_EVENTS),
        more=max(counts.pending, counts.parked) > MAX_COUNTED_EVENTS or window.first_part != window,
        lease=lease,
        holder=holder,
        leased_until=cursor.leased_until if lease != FREE else 0,
    )


def lease_of(token: str, leased_until: int, now: int) -> tuple[str, str]:
    """Return the state of a lease at `now`, and its holder, "" if it has none."""
    if not token or leased_until < now:
        return FREE, ""
    if token == REVOKED:
        return REVOKED, ""
    return LEASED, token.rpartition(":")[0]


def _count(connection: sa.Connection, windows: Iterable[LogWindow]) -> Iterator[Any]:
    """Yield what waits in each partition, counted up to one more than `MAX_COUNTED_EVENTS`."""

    def up_to_max(name: str, rows: str) -> str:
        return f"(SELECT COUNT(*) FROM (SELECT 1 {rows} LIMIT {MAX_COUNTED_EVENTS + 1:d}) AS {name}) AS {name}"  # noqa: S608 - numbers

    parked = "FROM parked WHERE target_id = {target_id} AND {column} = {partition}"
    counts = (
        up_to_max("pending", arrivals.IN_WINDOW),
        up_to_max("parked", parked),
        up_to_max("objects", f"{parked} AND not_before < {NEVER:d}"),
    )
    search = f"SELECT {{partition}} AS place, {', '.join(counts)}"
    return search_each(connection, search, (window.first_part for window in windows))
