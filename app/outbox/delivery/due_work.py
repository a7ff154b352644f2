"""Find the free partitions of targets that have due work."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox import tables
from app.outbox.delivery.isolation import TargetIsolation
from app.outbox.delivery.log_ahead import WINDOW, Look, events_ahead
from app.outbox.delivery.parked import first_due
from app.outbox.delivery.rate_limits import LONGEST_WAIT
from app.outbox.engine.database import Database
from app.outbox.markers import NEVER, WHOLE_LOG

OFFERED = "offered"  # instead of a token: any worker may claim
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
        head, *times = connection.execute(_HEAD, {"now": now}).one()
        rows = connection.execute(_FREE, {"now": now}).all()
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


def _due(row: Any, ahead: Sequence[int], head: int, now: int) -> DuePartition:
    # If few of the log's events are for the target, many more may wait than one window contains.
    busy = len(ahead) == BUSY or bool(ahead and row.position + WINDOW < head) or bool(row.replay)
    offered = row.leased_until if row.lease_token == OFFERED else 0
    target = (row.id, TargetId(row.type, row.name))
    # After a longer time its bucket is full, or it has no limit any more.
    limited = row.ready_at is not None and now - LONGEST_WAIT <= row.ready_at <= now
    return DuePartition(target, row.partition, busy, bool(ahead), row.breaker != "closed", offered, limited)


def _head() -> sa.Select[Any]:
    """Build the query for the log's head and the next times.

    These are when a breaker is probed, a lease expires, a rate limit ends, and a redelivery is due.
    """
    t, c, now = tables.targets.c, tables.cursors.c, sa.bindparam("now", type_=sa.BigInteger)
    limit, due = tables.rate_limits.c.ready_at, tables.redeliveries.c.due
    probe = sa.select(sa.func.min(t.resume_at)).where(t.enabled, sa.not_(t.paused), t.problem == "")
    expiry = sa.select(sa.func.min(c.leased_until) + 1).where(c.replay_id == WHOLE_LOG, c.leased_until >= now)
    return sa.select(
        tables.log_head.c.last_seq,
        probe.where(t.breaker != "closed", t.resume_at > now).scalar_subquery(),
        expiry.scalar_subquery(),
        sa.select(sa.func.min(limit)).where(limit > now, limit <= now + LONGEST_WAIT).scalar_subquery(),
        sa.select(sa.func.min(due)).where(due > now).scalar_subquery(),
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
_HEAD, _FREE = _head(), _free()
