"""Bring back stored times that are further in the future than any can be, because a clock was ahead when they were set.

A lease, a back-off or a circuit breaker would otherwise last until that time: a partition for years, if the clock of
the database's server was years ahead for a moment. The times are those that delay something: when a lease or a run's
lease expires, when a parked event, a redelivery or the opening of a target is due, when a circuit breaker lets a probe
pass, when a source is tried again, and by which the age of a heartbeat is measured. Rate limits and the schedules of
reconciliations take such a time for what it is where they read it.
"""

from itertools import groupby

import sqlalchemy as sa

from app.outbox import tables
from app.outbox.column_values import NEVER, WHOLE_LOG
from app.outbox.delivery.transitions import events as transitions
from app.outbox.engine.database import Database
from app.outbox.engine.locks import lock_cursors
from app.outbox.engine.many_rows import MAX_SEARCHES, chunks
from app.outbox.policies import FUTURE_TIMES, REDELIVERY
from app.outbox.reconcile.runs import BACKFILLING, RUNNING


def bring_back_future_times(database: Database, lease_ms: int, now: int) -> int:
    """Bring back the times that a clock which was ahead has stored; return how many rows were changed.

    `lease_ms` is how long a lease lasts. A worker that has a lease keeps it, because it renews it; one that is gone
    loses it after `lease_ms`. Safe to run concurrently. Raises `DatabaseUnavailable`.
    """
    return (
        _leases(database, lease_ms, now)
        + _parked(database, now)
        + _targets(database, now)
        + _sources(database, lease_ms, now)
        + _heartbeats(database, now)
        + _other_times(database, now)
    )


def _leases(database: Database, lease_ms: int, now: int) -> int:
    c, count = tables.cursors.c, 0
    ahead = (c.replay_id == WHOLE_LOG, c.leased_until > now + lease_ms + FUTURE_TIMES.tolerance_ms)
    with database.reading() as connection:
        rows = connection.execute(sa.select(c.target_id, c.partition).where(*ahead).order_by(c.target_id)).all()
    for target_id, group in groupby(rows, key=lambda row: row.target_id):
        partitions = [row.partition for row in group]
        with database.writing() as connection:
            lock_cursors(connection, target_id, partitions)
            update = tables.cursors.update().where(c.target_id == target_id, c.partition.in_(partitions), *ahead)
            count += connection.execute(update.values(leased_until=now + lease_ms)).rowcount
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


def _targets(database: Database, now: int) -> int:
    """Bring back when breakers are probed and targets opened, and when a target was created: its heartbeat's age."""
    t, count = tables.targets.c, 0
    changes = (
        (t.resume_at, now + FUTURE_TIMES.max_retry_after_ms),
        (t.opening_due_at, now + FUTURE_TIMES.max_opening_pause_ms),
        (t.created_at, now),
    )
    for column, latest in changes:
        ahead = (column > latest + FUTURE_TIMES.tolerance_ms, column < NEVER)
        with database.reading() as connection:
            ids = connection.execute(sa.select(t.id).where(*ahead)).scalars().all()
        for row_id in ids:  # each by a statement that commits by itself: intake waits for a target's row
            with database.committing() as connection:
                update = tables.targets.update().where(t.id == row_id, *ahead)
                count += connection.execute(update.values({column.name: now})).rowcount
    return count


def _sources(database: Database, lease_ms: int, now: int) -> int:
    s, lease_ends = tables.sources.c, now + lease_ms
    is_leased = s.leased_until > lease_ends + FUTURE_TIMES.tolerance_ms
    is_failed = s.resume_at > now + FUTURE_TIMES.tolerance_ms
    bounded = {
        "leased_until": sa.case((is_leased, lease_ends), else_=s.leased_until),
        "resume_at": sa.case((is_failed, now), else_=s.resume_at),
    }
    with database.committing() as connection:
        return connection.execute(tables.sources.update().where(sa.or_(is_leased, is_failed)).values(bounded)).rowcount


def _heartbeats(database: Database, now: int) -> int:
    h, u, w = tables.heartbeats.c, tables.upkeep.c, tables.workers.c
    times = (
        (h.name, [h.at]),
        (u.name, [u.succeeded_at, u.failed_at]),
        (w.id, [w.at, w.started_at, w.served_at, w.ended_at]),
    )
    count = 0
    for key, columns in times:
        latest = now + FUTURE_TIMES.tolerance_ms
        ahead = sa.or_(*(column > latest for column in columns))
        with database.reading() as connection:
            keys = connection.execute(sa.select(key).where(ahead)).scalars().all()
        values = {column.name: sa.case((column > latest, now), else_=column) for column in columns}
        for one in keys:
            with database.committing() as connection:
                count += connection.execute(key.table.update().where(key == one, ahead).values(values)).rowcount
    return count


def _other_times(database: Database, now: int) -> int:
    r, d = tables.reconciliations.c, tables.redeliveries.c
    with database.reading() as connection:
        alive = (
            r.state.in_((RUNNING, BACKFILLING)),
            r.alive_until > now + FUTURE_TIMES.run_lease_ms + FUTURE_TIMES.tolerance_ms,
        )
        runs = connection.execute(sa.select(r.id).where(*alive)).scalars().all()
    latest = now + REDELIVERY.latest_arrival_ms
    with database.committing() as connection:
        update = tables.redeliveries.update().where(d.until > latest + FUTURE_TIMES.tolerance_ms)
        bounded = {"until": latest, "due": sa.case((d.due > latest, latest), else_=d.due)}
        count = connection.execute(update.values(bounded)).rowcount
    for row_id in runs:
        with database.committing() as connection:
            update = tables.reconciliations.update().where(r.id == row_id, *alive)
            count += connection.execute(update.values(alive_until=now + FUTURE_TIMES.run_lease_ms)).rowcount
    return count
