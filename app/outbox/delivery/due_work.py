"""Find the free partitions of targets that have due work."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from random import Random
from typing import Any

import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox import tables
from app.outbox.delivery.isolation import TargetIsolation
from app.outbox.delivery.log_ahead import WINDOW_SEQS, Ahead, LogWindow, events_ahead
from app.outbox.delivery.parked import first_due
from app.outbox.delivery.policies import DUE_WORK
from app.outbox.delivery.rate_limits import MAX_WAIT_MS
from app.outbox.engine.chunks import chunks
from app.outbox.engine.database import Database
from app.outbox.markers import NEVER, WHOLE_LOG

_RNG = Random()  # noqa: S311 - which targets are first, not a secret


@dataclass(frozen=True, slots=True)
class DuePartition:
    """A free partition of a target that has due work.

    `state` is another one as soon as a worker has got on with the partition, or has tried to.
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
    searched: tuple[int, frozenset[int]]  # up to which seq of the log, and the partitions that have events there
    abandoned: frozenset[int]

    def groups(self) -> list[list[int]]:
        """Return the partitions as they are claimed: busy ones alone, so that workers share them; others together."""
        quiet = [due.partition for due in self.partitions if not due.busy]
        together = [list(some) for some in chunks(quiet, DUE_WORK.max_quiet_partitions)]
        return [[due.partition] for due in self.partitions if due.busy] + together

    @property
    def wake_ups(self) -> int:
        """How many workers can begin with it now."""
        # Where tokens are scarce, the first to deliver takes them, and the others got none.
        return 1 if self.limited or self.probe_at is not None else len(self.groups())


def is_free(cursors: sa.FromClause, now: sa.ColumnElement[int] | int) -> sa.ColumnElement[bool]:
    """Return the condition that no worker has a partition at `now` (ms), for the table of cursors or an alias of it."""
    return cursors.c.leased_until < now


class DueWork:
    """Searches for targets with due work. Use it from one thread at a time."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._isolation = TargetIsolation(database)
        self.next_at = NEVER  # when more may be due than the last search found, without a new event (ms)

    def find(self, now: int) -> list[DueTarget]:
        """Return every target that has a free partition with due work, sorted.

        Searches one window of the log after each cursor: events after more events of other targets are found after the
        cursor has been moved over those. More is due when a parked event of a free partition is, when a circuit breaker
        lets a probe pass, when a lease expires, or when a target with a rate limit may get events again.
        """
        with self._database.reading() as connection:
            head, partitions_of_log, targets, *times = connection.execute(_HEAD, {"now": now}).one()
            if targets <= DUE_WORK.few_targets:
                times.append(connection.execute(_EXPIRY, {"now": now}).scalar_one())
                rows = connection.execute(_FREE, {"now": now}).all()
            else:
                candidates, expiry = _candidates(connection, head, partitions_of_log, now)
                times.append(expiry)
                rows = [
                    row
                    for some in chunks(candidates)
                    for row in connection.execute(_FREE_OF_SOME, {"now": now, "target_ids": some})
                ]
            parked = first_due(connection, [(row.id, row.partition) for row in rows])
        by_target = {row_id: list(group) for row_id, group in groupby(rows, key=lambda row: row.id)}
        ahead: dict[tuple[int, int], Ahead] = {}

        def search(target_ids: Sequence[int]) -> None:
            with self._database.reading() as connection:
                ahead.update(_ahead(connection, chain.from_iterable(by_target[row_id] for row_id in target_ids)))

        behind = (row_id for row_id, some in by_target.items() if any(row.position < row.last_seq for row in some))
        self._isolation.run(behind, search)
        due = [target for some in by_target.values() if (target := _due_target(some, parked, ahead, now)) is not None]
        if any(target.limited and len(target.groups()) > 1 for target in due):
            times.append(now + DUE_WORK.limited_interval_ms)
        self.next_at = min((at for at in (*times, *parked.values()) if at is not None and at > now), default=NEVER)
        return due


def due_of_target(connection: sa.Connection, row_id: int, now: int) -> DueTarget | None:
    """Return the due work of one target; None if there is none, or if it cannot be delivered to now."""
    rows = connection.execute(_FREE_OF_ONE, {"now": now, "target_id": row_id}).all()
    if not rows:
        return None
    parked = first_due(connection, [(row.id, row.partition) for row in rows])
    return _due_target(rows, parked, _ahead(connection, rows), now)


def refused_partitions(connection: sa.Connection, row_id: int) -> set[int]:
    """Return the partitions with events that the target has refused since it last confirmed a delivery."""
    c, p = tables.cursors.c, tables.parked.c
    delivered_at = sa.select(sa.func.max(c.delivered_at)).where(c.target_id == row_id).scalar_subquery()
    query = (
        sa.select(p.partition).where(p.target_id == row_id, p.refused_at > sa.func.coalesce(delivered_at, 0)).distinct()
    )
    return set(connection.execute(query).scalars())


def _candidates(connection: sa.Connection, head: int, partitions: int, now: int) -> tuple[list[int], int | None]:
    """Return the targets that can have due work, sorted, and when the next lease expires.

    A few statements, however many targets and partitions are idle. A target can have work if one of the newest events
    of the log goes to it, if a free cursor is farther behind than those, or if it has parked events, redeliveries or
    replays. Of very many that are far behind, which are most likely idle until their cursors are moved, some are
    returned, others the next time.
    """
    near = head - DUE_WORK.near_seqs
    rows = connection.execute(_BEHIND_OR_LEASED, {"now": now, "near": near}).all()
    behind = {row.target_id: row.position for row in rows if row.position is not None and row.position < near}
    after = near if len(behind) <= DUE_WORK.few_targets else max(head - WINDOW_SEQS, min(behind.values()))
    far = [target_id for target_id, position in behind.items() if position < after]
    later = [row.expiry for row in rows if row.expiry is not None]
    if len(far) > DUE_WORK.max_far_targets:
        far = _RNG.sample(far, DUE_WORK.max_far_targets)
        later.append(now + DUE_WORK.far_interval_ms)
    candidates = set(far)
    logged = {"partitions": list(range(partitions)), "after": after, "head": head}
    for text in connection.execute(_GOES_TO, logged).scalars():
        # A negative number is that of a target for which the event was discarded.
        candidates.update(number for number in map(int, filter(None, text.split(","))) if number > 0)
    candidates.update(connection.execute(_BESIDE_LOG[connection.dialect.name in ("mysql", "mariadb")]).scalars())
    return sorted(candidates), min(later, default=None)


def _ahead(connection: sa.Connection, rows: Iterable[Any]) -> dict[tuple[int, int], Ahead]:
    windows = [
        LogWindow(row.id, row.partition, row.position, row.position + WINDOW_SEQS)
        for row in rows
        if row.position < row.last_seq
    ]
    return events_ahead(connection, windows, DUE_WORK.busy_events)


def _due_target(
    rows: Sequence[Any],
    parked: Mapping[tuple[int, int], int],
    ahead: Mapping[tuple[int, int], Ahead],
    now: int,
) -> DueTarget | None:
    """Return what of a target's free partitions is due; None if nothing is."""
    first = rows[0]
    partitions = [
        _due(row, parked_at, ahead.get((row.id, row.partition)))
        for row in rows
        if (parked_at := parked.get((row.id, row.partition), NEVER)) <= now
        or row.replay
        or row.redelivery
        or (row.id, row.partition) in ahead
    ]
    if not partitions:
        return None
    return DueTarget(
        row_id=first.id,
        target=TargetId(first.type, first.name),
        partitions=partitions,
        free=[row.partition for row in rows],
        probe_at=None if first.breaker == "closed" else first.resume_at,
        # After a longer time its bucket is full, or it has no limit any more.
        limited=first.ready_at is not None and now - MAX_WAIT_MS <= first.ready_at <= now,
        searched=(first.last_seq, frozenset(row.partition for row in rows if (row.id, row.partition) in ahead)),
        abandoned=frozenset(row.partition for row in rows if row.lease_token),
    )


def _due(row: Any, parked_at: int, ahead: Ahead | None) -> DuePartition:
    # If few of the log's events are for the target, many more may wait than one window contains.
    more = ahead is not None and row.position + WINDOW_SEQS < row.last_seq
    busy = more or bool(row.replay) or (ahead is not None and ahead.number == DUE_WORK.busy_events)
    state = (row.partition, row.position, parked_at, row.resume_at, row.ready_at, row.replay, row.redelivery)
    return DuePartition(row.partition, state, busy, ahead is not None)


def _head() -> sa.Select[Any]:
    """Build the query for the log's head, the number of targets, and the next times.

    These are when a breaker is probed, a rate limit ends, and a redelivery is due.
    """
    t, h, now = tables.targets.c, tables.log_head.c, sa.bindparam("now", type_=sa.BigInteger)
    limit, due = tables.rate_limits.c.ready_at, tables.redeliveries.c.due
    probe = sa.select(sa.func.min(t.resume_at)).where(t.enabled, sa.not_(t.paused), t.problem == "")
    return sa.select(
        h.last_seq,
        h.partitions,
        sa.select(sa.func.count(t.id)).scalar_subquery(),
        probe.where(t.breaker != "closed", t.resume_at > now).scalar_subquery(),
        sa.select(sa.func.min(limit)).where(limit > now, limit <= now + MAX_WAIT_MS).scalar_subquery(),
        sa.select(sa.func.min(due)).where(due > now).scalar_subquery(),
    )


def _expiry() -> sa.Select[Any]:
    """Build the query for when the next lease expires."""
    c, now = tables.cursors.c, sa.bindparam("now", type_=sa.BigInteger)
    return sa.select(sa.func.min(c.leased_until) + 1).where(c.replay_id == WHOLE_LOG, c.leased_until >= now)


def _behind_or_leased() -> sa.Select[Any]:
    """Build the query for targets with a cursor behind or leased: the first free position, and the next expiry.

    Cursors of targets that are unavailable, paused or disabled are not behind: nothing can be delivered there.
    """
    c, t, now = tables.cursors.c, tables.targets.c, sa.bindparam("now", type_=sa.BigInteger)
    near = sa.bindparam("near", type_=sa.BigInteger)
    is_available = sa.and_(
        t.enabled, sa.not_(t.paused), t.problem == "", sa.or_(t.breaker == "closed", t.resume_at <= now)
    )
    position = sa.func.min(sa.case((sa.and_(is_free(tables.cursors, now), is_available), c.position)))
    return (
        sa.select(c.target_id, position.label("position"))
        .add_columns(sa.func.min(sa.case((c.leased_until >= now, c.leased_until + 1))).label("expiry"))
        .join_from(tables.cursors, tables.targets, c.target_id == t.id)
        # All others are left out before they are joined and grouped: those of idle targets are nearly all.
        .where(c.replay_id == WHOLE_LOG, sa.or_(c.position < near, c.leased_until >= now))
        .group_by(c.target_id)
        .having(sa.or_(position < near, sa.func.max(c.leased_until) >= now))
    )


def _goes_to() -> sa.Select[Any]:
    """Build the query for the targets of the log's events after a seq, as they are stored."""
    e = tables.events.c
    partitions: sa.BindParameter[Any] = sa.bindparam("partitions", expanding=True)
    return (
        sa.select(e.targets)
        .where(e.partition.in_(partitions), e.seq > sa.bindparam("after"), e.seq <= sa.bindparam("head"))
        .distinct()
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


def _free() -> sa.Select[Any]:
    """Build the query for the free partitions of available targets, and whether they have a replay or redelivery.

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
    leased = (
        sa.exists()
        .where(other.c.target_id == c.target_id, other.c.replay_id == WHOLE_LOG, sa.not_(is_free(other, now)))
        .correlate(tables.cursors)
    )
    return (
        sa.select(t.id, t.type, t.name, t.breaker, t.resume_at, c.partition, c.position, c.lease_token)
        .add_columns(redelivery.label("redelivery"), replay.label("replay"), limit.ready_at)
        .add_columns(sa.select(tables.log_head.c.last_seq).scalar_subquery().label("last_seq"))
        .join_from(tables.cursors, tables.targets, c.target_id == t.id)
        .outerjoin(tables.rate_limits, limit.target_id == t.id)
        .where(sa.or_(sa.func.coalesce(limit.ready_at, 0) <= now, limit.ready_at > now + MAX_WAIT_MS))
        .where(t.enabled, sa.not_(t.paused), t.problem == "", c.replay_id == WHOLE_LOG, is_free(tables.cursors, now))
        .where(sa.or_(t.breaker == "closed", sa.and_(t.resume_at <= now, ~leased)))
        .order_by(t.id, c.partition)
    )


# Built once: building the statements takes longer than running them in the database.
_HEAD, _EXPIRY, _BEHIND_OR_LEASED, _GOES_TO, _FREE = _head(), _expiry(), _behind_or_leased(), _goes_to(), _free()
_FREE_OF_ONE = _FREE.where(tables.targets.c.id == sa.bindparam("target_id"))
_FREE_OF_SOME = _FREE.where(tables.targets.c.id.in_(sa.bindparam("target_ids", expanding=True)))
_BESIDE_LOG = {grouped: _beside_log(grouped=grouped) for grouped in (False, True)}
