"""Read and audit the counters: for each target, its events by delivery state. They must balance at any time.

matched  = recorded + discarded
recorded = delivered + superseded + pending + parked + dead + purged

An event that a replay delivers again counts as recorded once more, when the replay reaches it.
"""

from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox import log_head, tables
from app.outbox.delivery.log_ahead import WINDOW, Look, events_ahead, goes_to
from app.outbox.engine.database import Database
from app.outbox.markers import WHOLE_LOG
from app.outbox.targets import StoredTarget, find_target, stored_target

# The counters that are sums over a target's cursors, and their columns.
_SUMS = {"delivered": "delivered", "superseded": "superseded", "dead_lettered": "dead", "replayed": "replayed"}
_LOOKS = 10  # windows of the log that are searched for the oldest pending event


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
    """A target and its counters, read at the same moment."""

    stored: StoredTarget
    counters: TargetCounters


def read_counters(
    connection: sa.Connection, target_id: int | None = None, *, oldest: bool = True
) -> list[TargetCounters]:
    """Return the counters of every target, or of one; consistent if the connection's transaction reads a snapshot.

    Without `oldest`, that member is 0, which saves a few queries for each target.
    """
    return [status.counters for status in _statuses(connection, target_id, oldest=oldest)]


def read_status(connection: sa.Connection, target: TargetId | None = None) -> list[TargetStatus]:
    """Return every target, or one, with its counters, sorted by type and name. Raises `UnknownTarget`."""
    target_id = None if target is None else find_target(connection, target).row_id
    return _statuses(connection, target_id, oldest=True)


def _statuses(connection: sa.Connection, target_id: int | None, *, oldest: bool) -> list[TargetStatus]:
    rows = connection.execute(_select_status(target_id)).all()
    return [TargetStatus(stored_target(row), _counters(connection, row, oldest=oldest)) for row in rows]


def _select_status(target_id: int | None) -> sa.Select[Any]:
    """Build the query for every target, or one, with the sums over its cursors and the numbers of its other rows."""
    t, c, p, d = tables.targets.c, tables.cursors.c, tables.parked.c, tables.dead_letters.c
    joined: sa.FromClause = tables.targets
    columns: list[sa.ColumnElement[int]] = []
    for of_target, values in (
        (c.target_id, {name: sa.func.sum(c[column]) for name, column in _SUMS.items()}),
        (p.target_id, {"parked": sa.func.count()}),
        (d.target_id, {"dead": sa.func.count()}),
    ):
        grouped = sa.select(of_target, *(value.label(name) for name, value in values.items())).group_by(of_target)
        if target_id is not None:
            grouped = grouped.where(of_target == target_id)
        counts = grouped.subquery()
        joined = joined.outerjoin(counts, counts.c.target_id == t.id)
        columns += [sa.func.coalesce(counts.c[name], 0).label(name) for name in values]
    query = sa.select(tables.targets, *columns).select_from(joined).order_by(t.type, t.name)
    return query if target_id is None else query.where(t.id == target_id)


def _counters(connection: sa.Connection, row: Any, *, oldest: bool) -> TargetCounters:
    counters = TargetCounters(
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
    )
    return (
        replace(counters, oldest=oldest_undelivered(connection, row.id, pending=counters.pending > 0))
        if oldest
        else counters
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
        head = log_head.read(connection).last_seq
        audits = []
        for status in _statuses(connection, None, oldest=False):
            target_id = status.stored.row_id
            ahead = sum(head - position for _, position in _positions(connection, target_id)) if most else 0
            counted = None if most and ahead > most else _pending(connection, target_id)
            audits.append(Audit(status.counters, counted))
        return audits


def _pending(connection: sa.Connection, target_id: int) -> int:
    """Count the target's events after its cursors in the log, one by one."""
    e = tables.events.c
    behind = (
        sa.select(sa.func.count())
        .select_from(tables.events)
        .where(e.partition == sa.bindparam("of_partition"), e.seq > sa.bindparam("position"), goes_to(target_id))
    )
    # One query for each cursor: MySQL and MariaDB start an index scan at a seq only if it is a constant, not joined.
    return sum(
        connection.execute(behind, {"of_partition": partition, "position": position}).scalar_one()
        for partition, position in _positions(connection, target_id)
    )


def _positions(connection: sa.Connection, target_id: int) -> list[tuple[int, int]]:
    c = tables.cursors.c
    query = sa.select(c.partition, c.position).where(c.target_id == target_id, c.replay_id == WHOLE_LOG)
    return [(row.partition, row.position) for row in connection.execute(query)]


def oldest_undelivered(connection: sa.Connection, target_id: int, *, pending: bool) -> int:
    """Return when the oldest undelivered event was received (ms), 0 if there is none.

    It is the oldest of the first pending and the first parked one of each partition. Without `pending`, only parked
    events are searched.
    """
    e, p = tables.events.c, tables.parked.c
    first = sa.select(sa.func.min(p.seq)).where(p.target_id == target_id, p.partition == sa.bindparam("at"))
    partitions = [partition for partition, _ in _positions(connection, target_id)]
    parked = [(partition, connection.execute(first, {"at": partition}).scalar()) for partition in partitions]
    positions = [(partition, seq) for partition, seq in parked if seq is not None]
    if pending:
        positions += _first_pending(connection, target_id)
    received = sa.select(e.received_at).where(e.partition == sa.bindparam("at"), e.seq == sa.bindparam("seq"))
    times = (connection.execute(received, {"at": partition, "seq": seq}).scalar() for partition, seq in positions)
    return min((at for at in times if at is not None), default=0)


def _first_pending(connection: sa.Connection, target_id: int) -> list[tuple[int, int]]:
    """Return the first pending event in each partition, as partition and seq.

    If very many events of other targets precede it, it may not be found until the drain has moved the cursors over
    them. Then the last event up to the end of the search is returned instead, which is older than any pending event.
    """
    e = tables.events.c
    head = log_head.read(connection).last_seq
    at = {partition: position for partition, position in _positions(connection, target_id) if position < head}
    for _ in range(_LOOKS):
        looks = [Look(target_id, partition, after, after + WINDOW) for partition, after in at.items() if after < head]
        ahead = events_ahead(connection, looks)
        if ahead or not looks:
            return [(partition, seqs[0]) for (_, partition), seqs in ahead.items()]
        at = {look.partition: look.until for look in looks}
    before = sa.select(e.seq).where(e.partition == sa.bindparam("at"), e.seq <= sa.bindparam("seq"))
    before = before.order_by(e.seq.desc()).limit(1)
    return [
        (partition, row.seq)
        for partition, seq in at.items()
        for row in connection.execute(before, {"at": partition, "seq": seq})
    ]
