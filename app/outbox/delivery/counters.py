"""The counters: for each target, what was matched and where it stands; they must balance at any moment.

matched  = recorded + discarded
recorded = delivered + superseded + pending + parked + dead + purged

An event that a replay delivers again counts as recorded once more, from the moment at which the replay reaches it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox import tables
from app.outbox.delivery.leases import goes_to
from app.outbox.engine.database import Database


@dataclass(frozen=True, slots=True)
class TargetCounters:
    """One target's figures. `oldest` is when its oldest undelivered event was recorded (ms), 0 if there is none."""

    target: TargetId
    recorded: int
    delivered: int
    superseded: int
    parked: int
    dead: int
    purged: int
    discarded: int
    oldest: int
    dead_lettered: int  # ever, those replayed or thrown away since included

    @property
    def pending(self) -> int:
        """Recorded and not yet tried, or waiting behind a target that is away."""
        return self.recorded - self.delivered - self.superseded - self.parked - self.dead - self.purged

    @property
    def matched(self) -> int:
        """Every event that a rule named for it."""
        return self.recorded + self.discarded


def read_counters(connection: sa.Connection, *, oldest: bool = True) -> list[TargetCounters]:
    """The counters of every target, as of one moment for a connection in a transaction that sees a snapshot."""
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
    return [
        TargetCounters(
            target=TargetId(row.type, row.name),
            recorded=int(row.recorded),
            delivered=int(row.delivered),
            superseded=int(row.superseded),
            parked=row.parked,
            dead=row.dead,
            purged=row.purged,
            discarded=row.discarded,
            oldest=_oldest_undelivered(connection, row.id) if oldest else 0,
            dead_lettered=int(row.dead_lettered),
        )
        for row in rows
    ]


@dataclass(frozen=True, slots=True)
class Audit:
    """One target's counters against its events counted in the log."""

    counters: TargetCounters
    counted: int  # events found behind its cursors

    @property
    def difference(self) -> int:
        """0, or the counters do not balance."""
        return self.counters.pending - self.counted


def audit(database: Database) -> list[Audit]:
    """Count what is pending in the log itself and hold it against the counters.

    Reads a snapshot, so that deliveries going on meanwhile do not look like a difference. Cost grows with the backlog.
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
    """A connection whose SELECTs all see the same moment."""
    with database.engine.connect() as connection:
        if database.dialect == "sqlite":
            connection.execution_options(snapshot=True)  # of the WAL: no writer waits for it
        else:
            # Of this transaction only: a connection that had to be set back on its return could break on the way.
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        yield connection


def _pending(connection: sa.Connection, target_id: int) -> int:
    c, e = tables.cursors.c, tables.events.c
    behind = (
        sa.select(sa.func.count())
        .select_from(tables.events)
        .join(tables.cursors, sa.and_(c.partition == e.partition, e.seq > c.position))
        .where(c.target_id == target_id, c.replay_id == tables.WHOLE_LOG, goes_to(target_id))
    )
    return int(connection.execute(behind).scalar_one())


def _oldest_undelivered(connection: sa.Connection, target_id: int) -> int:
    """The receipt of its oldest waiting event: a look at the first in each partition, and at the parked."""
    c, e, p = tables.cursors.c, tables.events.c, tables.parked.c
    first = (
        sa.select(e.received_at)
        .where(e.partition == c.partition, e.seq > c.position, goes_to(target_id))
        .order_by(e.seq)
        .limit(1)
        .correlate(tables.cursors)
        .scalar_subquery()
    )
    waiting = sa.select(first.label("at")).where(c.target_id == target_id, c.replay_id == tables.WHOLE_LOG)
    oldest_parked = (
        sa.select(e.received_at.label("at"))
        .join_from(tables.parked, tables.events, sa.and_(p.partition == e.partition, p.seq == e.seq))
        .where(p.target_id == target_id)
    )
    both = sa.union_all(waiting, oldest_parked).subquery()
    return int(connection.execute(sa.select(sa.func.coalesce(sa.func.min(both.c.at), 0))).scalar_one())
