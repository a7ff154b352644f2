"""Read and audit the counters: for each target, its events by delivery state. They must balance at any time.

matched  = recorded + discarded
recorded = delivered + superseded + pending + parked + dead + purged

An event that a replay delivers again counts as recorded once more, when the replay reaches it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox import tables
from app.outbox.delivery.log_ahead import WINDOW, Look, events_ahead, goes_to
from app.outbox.engine.database import Database
from app.outbox.markers import WHOLE_LOG

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
    def matched(self) -> int:
        """All events that matched a rule of the target."""
        return self.recorded + self.discarded


def read_counters(connection: sa.Connection, *, oldest: bool = True) -> list[TargetCounters]:
    """Return the counters of every target; consistent if the connection's transaction reads a snapshot."""
    t, c = tables.targets.c, tables.cursors.c
    settled = (
        sa.select(
            c.target_id,
            sa.func.sum(c.delivered).label("delivered"),
            sa.func.sum(c.superseded).label("superseded"),
            sa.func.sum(c.dead).label("dead_lettered"),
            sa.func.sum(c.replayed).label("replayed"),
        )
        .group_by(c.target_id)
        .subquery()
    )
    counts = {
        table: sa.select(sa.func.count()).select_from(table).where(table.c.target_id == t.id).scalar_subquery()
        for table in (tables.parked, tables.dead_letters)
    }
    query = (
        sa.select(
            t.id, t.type, t.name, t.discarded, t.purged,
            (t.recorded + sa.func.coalesce(settled.c.replayed, 0)).label("recorded"),
            sa.func.coalesce(settled.c.delivered, 0).label("delivered"),
            sa.func.coalesce(settled.c.superseded, 0).label("superseded"),
            sa.func.coalesce(settled.c.dead_lettered, 0).label("dead_lettered"),
            counts[tables.parked].label("parked"),
            counts[tables.dead_letters].label("dead"),
        )
        .join_from(tables.targets, settled, settled.c.target_id == t.id, isouter=True)
        .order_by(t.type, t.name)
    )  # fmt: skip
    rows = connection.execute(query).all()
    found = [
        TargetCounters(
            target=TargetId(row.type, row.name),
            recorded=int(row.recorded),
            delivered=int(row.delivered),
            superseded=int(row.superseded),
            parked=row.parked,
            dead=row.dead,
            purged=row.purged,
            discarded=row.discarded,
            oldest=0,
            dead_lettered=int(row.dead_lettered),
        )
        for row in rows
    ]
    if not oldest:
        return found
    return [
        replace(counters, oldest=_oldest_undelivered(connection, row.id, counters.pending))
        for row, counters in zip(rows, found, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Audit:
    """One target's counters, compared with its events counted in the log."""

    counters: TargetCounters
    counted: int  # events in the log after its cursors

    @property
    def difference(self) -> int:
        """Pending events by the counters minus those counted; if not 0, the counters do not balance."""
        return self.counters.pending - self.counted


def audit(database: Database) -> list[Audit]:
    """Count the pending events in the log itself and compare them with the counters.

    Reads a snapshot, so that concurrent deliveries do not cause a difference. The cost grows with the backlog.
    """
    with snapshot(database) as connection:
        ids: Mapping[TargetId, int] = {
            TargetId(row.type, row.name): row.id
            for row in connection.execute(sa.select(tables.targets.c.id, tables.targets.c.type, tables.targets.c.name))
        }
        return [
            Audit(counters, _pending(connection, ids[counters.target]))
            for counters in read_counters(connection, oldest=False)
        ]


@contextmanager
def snapshot(database: Database) -> Iterator[sa.Connection]:
    """Yield a connection whose SELECTs all read the same snapshot."""
    with database.engine.connect() as connection:
        if database.dialect == "sqlite":
            connection.execution_options(snapshot=True)  # of the WAL: no writer waits for it
        else:
            # For this transaction only: resetting the connection when it is returned could fail.
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        yield connection


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


def _oldest_undelivered(connection: sa.Connection, target_id: int, pending: int) -> int:
    """Return when the oldest undelivered event was received (ms), from the first pending and parked per partition."""
    e, p = tables.events.c, tables.parked.c
    first = sa.select(sa.func.min(p.seq)).where(p.target_id == target_id, p.partition == sa.bindparam("at"))
    partitions = [partition for partition, _ in _positions(connection, target_id)]
    parked = [(partition, connection.execute(first, {"at": partition}).scalar()) for partition in partitions]
    places = [(partition, seq) for partition, seq in parked if seq is not None]
    if pending > 0:
        places += _first_pending(connection, target_id)
    received = sa.select(e.received_at).where(e.partition == sa.bindparam("at"), e.seq == sa.bindparam("seq"))
    found = (connection.execute(received, {"at": partition, "seq": seq}).scalar() for partition, seq in places)
    return min((at for at in found if at is not None), default=0)


def _first_pending(connection: sa.Connection, target_id: int) -> list[tuple[int, int]]:
    """Return the first pending event in each partition, as partition and seq.

    If very many events of other targets precede it, it may not be found until the drain has moved the cursors over
    them. Then the last event up to the end of the search is returned instead, which is older than any pending event.
    """
    e = tables.events.c
    head = connection.execute(sa.select(tables.log_head.c.last_seq)).scalar_one()
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
