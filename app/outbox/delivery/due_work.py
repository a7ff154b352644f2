"""Find due work: parked events by when they are due, and the free partitions of targets that have something to do."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox import tables
from app.outbox.column_values import NEVER, WHOLE_LOG
from app.outbox.delivery.availability import MAX_WAIT_MS
from app.outbox.engine.database import Database
from app.outbox.engine.many_rows import chunks, search_each
from app.outbox.log import arrivals
from app.outbox.log.arrivals import LogWindow
from app.outbox.policies import DUE_WORK, FUTURE_TIMES

ObjectHash = tuple[int, int]  # partition and key hash


class PartitionOf(NamedTuple):
    """A partition of a target."""

    target_id: int
    partition: int


class _Place(NamedTuple):
    """An object of a target."""

    target_id: int
    partition: int
    key_hash: int


_MINE = "FROM parked WHERE target_id = {target_id} AND {column} = {partition}"
_FIRST_DUE = f"SELECT {{target_id}}, {{partition}}, MIN(not_before) {_MINE}"
_FIRST = f"SELECT {{target_id}}, {{partition}}, MIN(seq) {_MINE}"
_ANY = f"SELECT {{target_id}}, {{partition}} {_MINE} LIMIT 1"


def first_due(connection: sa.Connection, partitions: Iterable[PartitionOf]) -> dict[tuple[int, int], int]:
    """Return when the first parked event of each partition is due (ms), if it has any; reads an index row for each."""
    rows = search_each(connection, _FIRST_DUE, partitions)
    return {(target_id, partition): due for target_id, partition, due in rows if due is not None}


def first_parked(connection: sa.Connection, partitions: Iterable[PartitionOf]) -> dict[tuple[int, int], int]:
    """Return the seq of the first parked event of each partition, if it has any; reads an index row for each."""
    rows = search_each(connection, _FIRST, partitions)
    return {(target_id, partition): seq for target_id, partition, seq in rows if seq is not None}


def with_parked(connection: sa.Connection, partitions: Iterable[PartitionOf]) -> Iterator[PartitionOf]:
    """Yield those of the partitions that have parked events; reads an index row for each."""
    yield from (PartitionOf(*row) for row in search_each(connection, _ANY, partitions))


def oldest_parked(
    connection: sa.Connection, target_id: int, objects: Sequence[ObjectHash], most: int
) -> list[tuple[int, int]]:
    """Return partition and seq of the `most` oldest parked events of each object, in no particular order.

    Reads that many index rows for each object, however many events wait behind them.
    """
    # A range and an order that only one index has: PostgreSQL would read all events before the object's by another one.
    is_range = connection.dialect.name == "postgresql"
    of_object = "key_hash BETWEEN {key_hash} AND {key_hash}" if is_range else "key_hash = {key_hash}"
    search = f"SELECT {{partition}}, seq {_MINE} AND {of_object} ORDER BY key_hash, seq LIMIT {most:d}"
    places = (_Place(target_id, partition, key_hash) for partition, key_hash in objects)
    return [(partition, seq) for partition, seq in search_each(connection, search, places)]


@dataclass(frozen=True, slots=True)
class Refusals:
    """A target's recorded refusals: when it last confirmed a delivery, and which parked events it has refused since.

    `partitions` are the partitions of those events. `of_others` is true if there are more of them than those given.
    """

    delivered_at: int
    partitions: frozenset[int] = frozenset()
    of_others: bool = False


def read_refusals(
    connection: sa.Connection, target_id: int, now: int, known: Set[tuple[int, int]] = frozenset()
) -> Refusals:
    """Return when a target last confirmed a delivery, in any partition, and its refusals since.

    `of_others` of the result is true if some refused events, by partition and seq, are not in `known`. A delivery after
    `now` (ms) was confirmed before the clock was set back. It does not count: each refusal would seem to be older, and
    an outage would cost attempts.
    """
    c, p = tables.cursors.c, tables.parked.c
    confirmed = sa.select(sa.func.max(c.delivered_at)).where(
        c.target_id == target_id, c.delivered_at <= now + FUTURE_TIMES.tolerance_ms
    )
    delivered_at = int(connection.execute(confirmed).scalar_one() or 0)
    query = sa.select(p.partition, p.seq).where(p.target_id == target_id, p.refused_at > delivered_at)
    refused = {(row.partition, row.seq) for row in connection.execute(query)}
    return Refusals(delivered_at, frozenset(partition for partition, _ in refused), not refused <= known)


@dataclass(frozen=True, slots=True)
class DuePartition:
    """A free partition of a target that has due work.

    `state` is another one as soon as a worker has got on with the partition, or has tried to. `busy` says that many
    events wait, or a replay, so that it is claimed alone; not that a worker has it: none has.
    """

    partition: int
    state: tuple[object, ...]
    busy: bool
    has_events: bool  # that were never attempted


@dataclass(frozen=True, slots=True)
class DueTarget:
    """A target that can be delivered to now, and its free partitions that have due work.

    `free` are all its free partitions. `probe_at` (ms) is set while its circuit breaker is open: the time since which a
    probe may pass. `limited` says that tokens of its rate limit, which its partitions share, have just been used up.
    `abandoned` are the free partitions whose lease expired: its holder did not release it, so what it had sent last may
    not have been settled, and may still be on its way.
    """

    row_id: int
    target: TargetId
    partitions: Sequence[DuePartition]
    free: Sequence[int]
    probe_at: int | None
    limited: bool
    abandoned: frozenset[int]

    @property
    def alone(self) -> list[int]:
        """The partitions that are claimed alone.

        These are busy ones, so that workers share them, and abandoned ones: an event that kills each worker which tries
        it, such as one that the system then has no memory for, must not keep others from being delivered.
        """
        return [due.partition for due in self.partitions if due.busy or due.partition in self.abandoned]

    def groups(self) -> list[list[int]]:
        """Return the partitions as they are claimed: some alone, the others together."""
        alone = self.alone
        quiet = (due.partition for due in self.partitions if due.partition not in alone)
        return [[partition] for partition in alone] + list(chunks(quiet, DUE_WORK.max_quiet_partitions))

    @property
    def wake_ups(self) -> int:
        """How many workers can begin with it now."""
        # Where tokens are scarce, the first to deliver takes them, and the others got none.
        return 1 if self.limited or self.probe_at is not None else len(self.groups())


def is_free(cursors: sa.FromClause, now: sa.ColumnElement[int] | int) -> sa.ColumnElement[bool]:
    """Return the condition that no worker has a partition at `now` (ms), for the table of cursors or an alias of it."""
    return cursors.c.leased_until < now


class _Seen(NamedTuple):
    """The log at the last search."""

    epoch: str
    seq: int  # up to which it was known which targets have events
    forget_at: float  # when to look at all targets again, by time.monotonic()


class DueWork:
    """Searches for targets with due work. Use it from one thread at a time.

    It remembers which targets may have events after their cursors: those for which events were recorded since its last
    search, and those that had some then. Now and then it looks at all.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._behind: set[int] | None = None  # targets that may have events after their cursors; None: any
        self._seen = _Seen("", 0, 0.0)
        self.next_at = NEVER  # when more may be due than the last search found, without a new event (ms)

    def find(self, now: int) -> list[DueTarget]:
        """Return every target that has a free partition with due work, sorted.

        A few statements, however many targets and partitions are idle. More is due when a parked event of a free
        partition is, when a circuit breaker lets a probe pass, when a lease expires, or when a target with a rate limit
        may get events again.
        """
        with self._database.reading() as connection:
            last_seq, arrivals_seq, epoch, *times = connection.execute(_HEAD, {"now": now}).one()
        if arrivals_seq < last_seq:
            arrivals.catch_up(self._database)
        with self._database.reading() as connection:
            behind = self._may_be_behind(connection, last_seq, epoch)
            beside = connection.execute(_BESIDE_LOG[connection.dialect.name in ("mysql", "mariadb")]).scalars()
            rows = [
                row
                for some in chunks(sorted(behind.union(beside)))
                for row in connection.execute(_PARTITIONS_OF_SOME, {"now": now, "target_ids": some})
            ]
            windows = _windows(rows)
            due, parked_times = _due(connection, rows, windows, now)
        # Of those that cannot be delivered to now there are no rows.
        self._behind = behind - {row.target_id for row in rows} | {target_id for target_id, _ in windows}
        self._seen = self._seen._replace(epoch=epoch, seq=arrivals_seq)
        times += [*parked_times, *(row.leased_until + 1 for row in rows)]
        if any(target.limited and len(target.groups()) > 1 for target in due):
            times.append(now + DUE_WORK.limited_interval_ms)
        self.next_at = min((at for at in times if at is not None and at > now), default=NEVER)
        return due

    def _may_be_behind(self, connection: sa.Connection, last_seq: int, epoch: str) -> set[int]:
        behind, self._behind = self._behind, None  # it stays so if the search fails
        # An older state of the log has other events at the seqs that were seen.
        is_older = epoch != self._seen.epoch or last_seq < self._seen.seq
        if behind is None or is_older or time.monotonic() >= self._seen.forget_at:
            self._seen = self._seen._replace(forget_at=time.monotonic() + DUE_WORK.remember_seconds)
            return set(connection.execute(_BEHIND).scalars())
        return behind.union(connection.execute(_CHANGED, {"seen": self._seen.seq}).scalars())


def due_of_target(connection: sa.Connection, row_id: int, now: int) -> DueTarget | None:
    """Return the due work of one target; None if there is none, or if it cannot be delivered to now."""
    rows = connection.execute(_PARTITIONS_OF_SOME, {"now": now, "target_ids": [row_id]}).all()
    due, _ = _due(connection, rows, _windows(rows), now)
    return due[0] if due else None


_MANY_EVENTS = f"SELECT {{target_id}}, {{partition}} {arrivals.IN_WINDOW} LIMIT 1 OFFSET {DUE_WORK.busy_events - 1:d}"
_Windows = Mapping[tuple[int, int], LogWindow]  # which part of the log has events, by target and partition


def _windows(rows: Iterable[Any]) -> _Windows:
    return {(row.target_id, row.partition): window for row in rows if (window := arrivals.unread(row)) is not None}


def _due(
    connection: sa.Connection, rows: Sequence[Any], windows: _Windows, now: int
) -> tuple[list[DueTarget], Iterable[int]]:
    """Return the targets with due work, by rows of their partitions, and when the parked events of free ones are."""
    free: dict[int, list[Any]] = {}
    for row_id, group in groupby(rows, key=lambda row: row.target_id):
        partitions = list(group)
        free[row_id] = [row for row in partitions if row.leased_until < now]
        if partitions[0].breaker != "closed" and len(free[row_id]) < len(partitions):
            del free[row_id]  # a worker probes it
    places = [PartitionOf(row.target_id, row.partition) for some in free.values() for row in some]
    parked = first_due(connection, places)
    busy = _busy(connection, [windows[place] for place in places if place in windows])
    found = _Found(parked, windows.keys(), busy)
    targets = (_due_target(partitions, found, now) for partitions in free.values() if partitions)
    return [target for target in targets if target is not None], parked.values()


def _busy(connection: sa.Connection, windows: Sequence[LogWindow]) -> set[tuple[int, int]]:
    """Return the targets and partitions of the windows in which many events wait.

    Where few of the log's events are for the target, more may wait than one search reads.
    """
    parts = [window.first_part for window in windows]
    busy = {tuple(row) for row in search_each(connection, _MANY_EVENTS, parts)}
    return busy | {window[:2] for window, part in zip(windows, parts, strict=True) if window != part}


class _Found(NamedTuple):
    """What waits in partitions, by target and partition."""

    parked: Mapping[tuple[int, int], int]  # when the first event is due (ms)
    with_events: Set[tuple[int, int]]  # that were never attempted
    busy: Set[tuple[int, int]]


def _due_target(rows: Sequence[Any], found: _Found, now: int) -> DueTarget | None:
    """Return what of a target's free partitions is due; None if nothing is."""
    first = rows[0]
    partitions = [
        _due_partition(row, found)
        for row in rows
        if found.parked.get((row.target_id, row.partition), NEVER) <= now
        or row.replay
        or row.redelivery
        or (row.target_id, row.partition) in found.with_events
    ]
    if not partitions:
        return None
    return DueTarget(
        row_id=first.target_id,
        target=TargetId(first.type, first.name),
        partitions=partitions,
        free=[row.partition for row in rows],
        probe_at=None if first.breaker == "closed" else first.resume_at,
        # After a longer time its bucket is full, or it has no limit any more.
        limited=first.ready_at is not None and now - MAX_WAIT_MS <= first.ready_at <= now,
        abandoned=frozenset(row.partition for row in rows if row.lease_token),
    )


def _due_partition(row: Any, found: _Found) -> DuePartition:
    place = row.target_id, row.partition
    parked_at = found.parked.get(place, NEVER)
    state = (row.partition, row.position, parked_at, row.resume_at, row.ready_at, row.replay, row.redelivery)
    return DuePartition(row.partition, state, bool(row.replay) or place in found.busy, place in found.with_events)


def _head() -> sa.Select[Any]:
    """Build the query for the log's head and the next times.

    These are when a breaker is probed, a rate limit ends, and a redelivery is due.
    """
    t, h, now = tables.targets.c, tables.log_head.c, sa.bindparam("now", type_=sa.BigInteger)
    limit, due = tables.rate_limits.c.ready_at, tables.redeliveries.c.due
    probe = sa.select(sa.func.min(t.resume_at)).where(t.enabled, sa.not_(t.paused), t.problem == "")
    return sa.select(
        h.last_seq,
        h.arrivals_seq,
        h.epoch,
        probe.where(t.breaker != "closed", t.resume_at > now).scalar_subquery(),
        sa.select(sa.func.min(limit)).where(limit > now, limit <= now + MAX_WAIT_MS).scalar_subquery(),
        sa.select(sa.func.min(due)).where(due > now).scalar_subquery(),
    )


def _beside_log(*, grouped: bool) -> sa.CompoundSelect[Any]:
    """Build the query for targets that have parked events, redeliveries or unfinished replays.

    MySQL and MariaDB jump from target to target in the index if it is `grouped`; the others search for each target.
    """
    t, c, r = tables.targets.c, tables.cursors.c, tables.replays.c
    unfinished = sa.exists().where(c.target_id == r.target_id, c.replay_id == r.id)
    return sa.union(
        *(
            sa.select(table.c.target_id).group_by(table.c.target_id)
            if grouped
            else sa.select(t.id).where(sa.exists().where(table.c.target_id == t.id))
            for table in (tables.parked, tables.redeliveries)
        ),
        sa.select(r.target_id).where(unfinished),
    )


def _partitions_of_some() -> sa.Select[Any]:
    """Build the query for the partitions of available targets, and whether they have a replay or redelivery.

    It reads a few index rows for each partition.
    """
    c, t, r, limit = tables.cursors.c, tables.targets.c, tables.redeliveries.c, tables.rate_limits.c
    now = sa.bindparam("now", type_=sa.BigInteger)
    other = tables.cursors.alias()
    redelivery = (
        sa.exists()
        .where(r.target_id == c.target_id, r.partition == c.partition, r.due <= now)
        .correlate(tables.cursors)
    )
    # These are unfinished replays only, because the cursor of a finished one is removed.
    replay = (
        sa.exists()
        .where(other.c.target_id == c.target_id, other.c.partition == c.partition)
        .where(other.c.replay_id > WHOLE_LOG)
        .correlate(tables.cursors)
    )
    return (
        sa.select(t.type, t.name, t.breaker, t.resume_at, c.lease_token, c.leased_until, *arrivals.CURSOR)
        .add_columns(redelivery.label("redelivery"), replay.label("replay"), limit.ready_at)
        .select_from(arrivals.CURSORS.join(tables.targets, c.target_id == t.id))
        .outerjoin(tables.rate_limits, limit.target_id == t.id)
        .where(t.id.in_(sa.bindparam("target_ids", expanding=True)), c.replay_id == WHOLE_LOG)
        .where(sa.or_(sa.func.coalesce(limit.ready_at, 0) <= now, limit.ready_at > now + MAX_WAIT_MS))
        .where(t.enabled, sa.not_(t.paused), t.problem == "", sa.or_(t.breaker == "closed", t.resume_at <= now))
        .order_by(t.id, c.partition)
    )


# Built once: building the statements takes longer than running them in the database.
_HEAD, _PARTITIONS_OF_SOME = _head(), _partitions_of_some()
_BEHIND = (
    sa.select(tables.cursors.c.target_id)
    .select_from(arrivals.CURSORS)
    .where(tables.cursors.c.replay_id == WHOLE_LOG, arrivals.HAS_UNREAD)
    .distinct()
)
_CHANGED = sa.select(tables.targets.c.id).where(tables.targets.c.last_seq > sa.bindparam("seen", type_=sa.BigInteger))
_BESIDE_LOG = {grouped: _beside_log(grouped=grouped) for grouped in (False, True)}
