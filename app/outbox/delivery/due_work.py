"""Find the free partitions of targets that have due work."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox import tables
from app.outbox.delivery.isolation import TargetIsolation
from app.outbox.delivery.log_ahead import WINDOW, Look, events_ahead
from app.outbox.delivery.parked import first_due
from app.outbox.delivery.rate_limits import LONGEST_WAIT
from app.outbox.engine.database import Database
from app.outbox.log.append import chunks
from app.outbox.markers import NEVER, WHOLE_LOG

OFFERED = "offered"  # instead of a token: any worker may claim
_FEW = 16  # with so many targets all are searched: that costs less than to find out which can have work
_NEAR = 1_000  # newest seqs of the log in which the targets with work are looked for
_MAX_FAR_TARGETS, _FAR_INTERVAL_MS = (
    64,
    100,
)  # targets that are far behind in one search, and ms until the next if there are more
_RNG = Random()  # noqa: S311 - which targets are first, not a secret
BUSY = 20  # with this many waiting events a partition is offered alone, otherwise together with others


@dataclass(frozen=True, slots=True)
class DuePartition:
    """A free partition of a target that has due work."""

    target: tuple[int, TargetId]
    partition: int
    busy: bool
    waiting: bool  # has events that were never attempted
    probing: bool
    offered: int  # when its untaken offer expired (ms); 0 if it was not offered
    limited: bool = False  # tokens of the target's rate limit, which its partitions share, have just been used up


@dataclass(frozen=True, slots=True)
class DueWork:
    """Free partitions with due work, and when more may be due without a new event (ms; NEVER: as far as is known)."""

    partitions: Sequence[DuePartition]
    next_at: int


def due_partitions(database: Database, isolation: TargetIsolation, now: int) -> DueWork:
    """Return every free partition that has due work, sorted by target and partition.

    Searches one window of the log after each cursor: events after more events of other targets are found after the
    cursor has been moved over those. More is due when a parked event of a free partition is, when a circuit breaker
    lets a probe pass, when a lease or an offer expires, or when a target with a rate limit may get events again.
    """
    with database.reading() as connection:
        head, partitions_of_log, targets, *times = connection.execute(_HEAD, {"now": now}).one()
        if targets <= _FEW:
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
    later = [time for time in (*times, *parked.values()) if time is not None and time > now]
    ahead: dict[tuple[int, int], list[int]] = {}
    looks: dict[int, list[Look]] = defaultdict(list)
    for row in rows:
        if row.position < head:
            looks[row.id].append(Look(row.id, row.partition, row.position, row.position + WINDOW))

    def look(target_ids: Sequence[int]) -> None:
        with database.reading() as connection:
            ahead.update(events_ahead(connection, [each for target in target_ids for each in looks[target]], BUSY))

    isolation.run(looks, look)
    partitions = [
        _due(row, ahead.get((row.id, row.partition), ()), head, now)
        for row in rows
        if row.replay
        or row.redelivery
        or (row.id, row.partition) in ahead
        or parked.get((row.id, row.partition), NEVER) <= now
    ]
    return DueWork(partitions, min(later, default=NEVER))


def _candidates(connection: sa.Connection, head: int, partitions: int, now: int) -> tuple[list[int], int | None]:
    """Return the targets that can have due work, sorted, and when the next lease or offer expires.

    A few statements, however many targets and partitions are idle. A target can have work if one of the newest events
    of the log goes to it, if a free cursor is farther behind than those, or if it has parked events, redeliveries or
    replays. Of very many that are far behind, which are most likely idle until their cursors are moved, some are
    returned, others the next time.
    """
    near = head - _NEAR
    rows = connection.execute(_BEHIND_OR_LEASED, {"now": now, "near": near}).all()
    behind = {row.target_id: row.position for row in rows if row.position is not None and row.position < near}
    after = near if len(behind) <= _FEW else max(head - WINDOW, min(behind.values()))
    far = [target_id for target_id, position in behind.items() if position < after]
    later = [row.expiry for row in rows if row.expiry is not None]
    if len(far) > _MAX_FAR_TARGETS:
        far = _RNG.sample(far, _MAX_FAR_TARGETS)
        later.append(now + _FAR_INTERVAL_MS)
    found = set(far)
    logged = {"partitions": list(range(partitions)), "after": after, "head": head}
    for text in connection.execute(_GOES_TO, logged).scalars():
        found.update(map(int, filter(None, text.split(","))))
    found.update(connection.execute(_BESIDE_LOG[connection.dialect.name in ("mysql", "mariadb")]).scalars())
    return sorted(found), min(later, default=None)


def _due(row: Any, ahead: Sequence[int], head: int, now: int) -> DuePartition:
    # If few of the log's events are for the target, many more may wait than one window contains.
    busy = len(ahead) == BUSY or bool(ahead and row.position + WINDOW < head) or bool(row.replay)
    offered = row.leased_until if row.lease_token == OFFERED else 0
    target = (row.id, TargetId(row.type, row.name))
    # After a longer time its bucket is full, or it has no limit any more.
    limited = row.ready_at is not None and now - LONGEST_WAIT <= row.ready_at <= now
    return DuePartition(target, row.partition, busy, bool(ahead), row.breaker != "closed", offered, limited)


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
        sa.select(sa.func.min(limit)).where(limit > now, limit <= now + LONGEST_WAIT).scalar_subquery(),
        sa.select(sa.func.min(due)).where(due > now).scalar_subquery(),
    )


def _expiry() -> sa.Select[Any]:
    """Build the query for when the next lease or offer expires."""
    c, now = tables.cursors.c, sa.bindparam("now", type_=sa.BigInteger)
    return sa.select(sa.func.min(c.leased_until) + 1).where(c.replay_id == WHOLE_LOG, c.leased_until >= now)


def _behind_or_leased() -> sa.Select[Any]:
    """Build the query for targets with a cursor behind or leased: the first free position, and the next expiry.

    Cursors of targets that are unavailable, paused or disabled are not behind: nothing can be delivered there.
    """
    c, t, now = tables.cursors.c, tables.targets.c, sa.bindparam("now", type_=sa.BigInteger)
    is_available = sa.and_(
        t.enabled, sa.not_(t.paused), t.problem == "", sa.or_(t.breaker == "closed", t.resume_at <= now)
    )
    position = sa.func.min(sa.case((sa.and_(c.leased_until < now, is_available), c.position)))
    return (
        sa.select(c.target_id, position.label("position"))
        .add_columns(sa.func.min(sa.case((c.leased_until >= now, c.leased_until + 1))).label("expiry"))
        .join_from(tables.cursors, tables.targets, c.target_id == t.id)
        .where(c.replay_id == WHOLE_LOG)
        .group_by(c.target_id)
        .having(sa.or_(position < sa.bindparam("near", type_=sa.BigInteger), sa.func.max(c.leased_until) >= now))
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
        .where(other.c.target_id == c.target_id, other.c.replay_id == WHOLE_LOG, other.c.leased_until >= now)
        .correlate(tables.cursors)
    )
    return (
        sa.select(t.id, t.type, t.name, t.breaker, c.partition, c.position, c.lease_token, c.leased_until)
        .add_columns(redelivery.label("redelivery"), replay.label("replay"), limit.ready_at)
        .join_from(tables.cursors, tables.targets, c.target_id == t.id)
        .outerjoin(tables.rate_limits, limit.target_id == t.id)
        .where(sa.or_(sa.func.coalesce(limit.ready_at, 0) <= now, limit.ready_at > now + LONGEST_WAIT))
        .where(t.enabled, sa.not_(t.paused), t.problem == "", c.replay_id == WHOLE_LOG, c.leased_until < now)
        .where(sa.or_(t.breaker == "closed", sa.and_(t.resume_at <= now, ~leased)))
        .order_by(t.id, c.partition)
    )


# Built once: building the statements takes longer than running them in the database.
_HEAD, _EXPIRY, _BEHIND_OR_LEASED, _GOES_TO, _FREE = _head(), _expiry(), _behind_or_leased(), _goes_to(), _free()
_FREE_OF_SOME = _FREE.where(tables.targets.c.id.in_(sa.bindparam("target_ids", expanding=True)))
_BESIDE_LOG = {grouped: _beside_log(grouped=grouped) for grouped in (False, True)}
