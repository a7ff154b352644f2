"""Bring back stored times that are further in the future than any can be, because a clock was ahead when they were set.

A lease, a back-off or a circuit breaker would otherwise last until that time: a partition for years, if the clock of
the database's server was years ahead for a moment. The times are those that delay something: when a lease or a run's
lease expires, when a parked event, a redelivery or the opening of a target is due, when a circuit breaker lets a probe
pass, when a source is tried again, and by which the age of a heartbeat is measured. Rate limits and the schedules of
reconciliations take such a time for what it is where they read it.
"""

from itertools import groupby
from typing import NamedTuple

import sqlalchemy as sa

from app.outbox import tables
from app.outbox.column_values import NEVER, WHOLE_LOG
from app.outbox.delivery import transitions
from app.outbox.engine.database import Database
from app.outbox.engine.many_rows import MAX_SEARCHES, chunks, lock_cursors
from app.outbox.policies import FUTURE_TIMES, REDELIVERY
from app.outbox.reconcile.runs import BACKFILLING, RUNNING


class _Time(NamedTuple):
    """A column of times that are at most `most` ms ahead of the clock, and how far ahead they are brought back to."""

    column: sa.Column[int]
    most: int = 0
    becomes: int = 0
    only: sa.ColumnElement[bool] = sa.true()


def bring_back_future_times(database: Database, lease_ms: int, now: int) -> int:
    """Bring back the times that a clock which was ahead has stored; return how many were changed.

    `lease_ms` is how long a lease lasts. A worker that has a lease keeps it, because it renews it; one that is gone
    loses it after `lease_ms`. Safe to run concurrently. Raises `DatabaseUnavailable`.
    """
    return _parked(database, now) + sum(_bring_back(database, time, now) for time in _times(lease_ms))


def _times(lease_ms: int) -> tuple[_Time, ...]:
    """Return the times of which each is changed by itself."""
    t, s, w, u = tables.targets.c, tables.sources.c, tables.workers.c, tables.upkeep.c
    r, d = tables.reconciliations.c, tables.redeliveries.c
    run_ms, arrival_ms = FUTURE_TIMES.run_lease_ms, REDELIVERY.latest_arrival_ms
    of_heartbeats = (tables.heartbeats.c.at, u.succeeded_at, u.failed_at, w.at, w.started_at, w.served_at, w.ended_at)
    return (
        _Time(tables.cursors.c.leased_until, lease_ms, lease_ms),
        _Time(t.resume_at, FUTURE_TIMES.max_retry_after_ms),
        _Time(t.opening_due_at, FUTURE_TIMES.max_opening_pause_ms),
        _Time(t.created_at),  # its heartbeat's age
        _Time(s.leased_until, lease_ms, lease_ms),
        _Time(s.resume_at),
        _Time(r.alive_until, run_ms, run_ms, r.state.in_((RUNNING, BACKFILLING))),
        _Time(d.due, arrival_ms, arrival_ms),
        _Time(d.until, arrival_ms, arrival_ms),
        *map(_Time, of_heartbeats),
    )


def _bring_back(database: Database, time: _Time, now: int) -> int:
    table, column = time.column.table, time.column
    ahead = (column > now + time.most + FUTURE_TIMES.tolerance_ms, column < NEVER, time.only)
    keys = list(table.primary_key)
    with database.reading() as connection:
        rows = connection.execute(sa.select(*keys).where(*ahead)).all()
    count = 0
    for row in rows:  # each by a statement that commits by itself: intake waits for a target's row
        this = [key == value for key, value in zip(keys, row, strict=True)]
        with database.committing() as connection:
            update = sa.update(table).where(*this, *ahead).values({column.name: now + time.becomes})
            count += connection.execute(update).rowcount
    return count


def _parked(database: Database, now: int) -> int:
    """Make due what was last tried in the future, and what took over such a time from another event of its object."""
    c, p, count = tables.cursors.c, tables.parked.c, 0
    ahead = (
        p.not_before > now + FUTURE_TIMES.tolerance_ms,
        p.not_before < NEVER,
        sa.or_(
            p.last_tried > now + FUTURE_TIMES.tolerance_ms,
            sa.and_(p.attempts == 0, p.not_before > now + FUTURE_TIMES.max_retry_after_ms + FUTURE_TIMES.tolerance_ms),
        ),
    )
    has_parked = sa.exists().where(p.target_id == c.target_id, p.partition == c.partition)  # an index row for each
    cursors = (
        sa.select(c.target_id, c.partition)
        .where(c.replay_id == WHOLE_LOG, has_parked)
        .order_by(c.target_id, c.partition)
    )
    with database.reading() as connection:
        places = connection.execute(cursors).all()
    for target_id, group in groupby(places, key=lambda row: row.target_id):
        for some in chunks([row.partition for row in group], MAX_SEARCHES):
            here = (p.target_id == target_id, p.partition.in_(some), *ahead)  # a range of an index for each partition
            with database.reading() as connection:
                affected = set(connection.execute(sa.select(p.partition).where(*here).distinct()).scalars())
            if affected:
                with database.writing() as connection:
                    lock_cursors(connection, target_id, affected)
                    count += transitions.bring_forward(connection, sa.and_(*here), now)
    return count
