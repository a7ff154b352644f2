"""Remove what retention no longer asks for from the tail of the log, in batches that hold no lock for long."""

import math
import time
from random import Random

import sqlalchemy as sa

from app.outbox import tables
from app.outbox.engine.database import Database
from app.outbox.engine.locks import lock_tail
from app.outbox.versions.retention import drop_unused, keep_records


def purge(
    database: Database,
    older_than: int,
    *,
    batch: int = 1000,
    most: int = 100_000,
    seconds: float = math.inf,
    unused: bool = True,
) -> int:
    """Delete events received before `older_than` (ms) that every cursor has passed and nothing refers to.

    Returns how many; stops after `most` of them or so many `seconds`, so that a purge is never long: the next one goes
    on. It looks at a partition up to the first batch that ends with a newer event, not at all of it. What a mirror
    needs of the events is kept with what it knows of its keys. With `unused` what was kept for mirrors that are
    none any more is deleted, too, which locks every mirror's cursors in turn.
    """
    with database.reading() as connection:
        partitions = connection.execute(sa.select(tables.log_head.c.partitions)).scalar_one()
    removed, ends = 0, time.monotonic() + seconds
    for partition in Random().sample(range(partitions), partitions):  # noqa: S311 - so that none is always the last
        after: int | None = 0
        while after is not None and removed < most and time.monotonic() < ends:
            count, after = _purge_batch(database, partition, after, older_than, batch)
            removed += count
    if unused:
        drop_unused(database)
    return removed


def _purge_batch(database: Database, partition: int, after: int, older_than: int, batch: int) -> tuple[int, int | None]:
    """Look at a batch of events from `after` on; how many were removed, and where to go on (None: it was the last)."""
    e = tables.events.c
    with database.writing() as connection:
        # A replay that begins adds a cursor at the tail of the log: it must be seen here, or begin after the COMMIT.
        lock_tail(connection)
        query = (
            sa.select(e.seq, e.received_at, sa.or_(*_referred()).label("kept"))
            .where(e.partition == partition, e.seq > after, e.seq <= _passed(connection, partition))
            .order_by(e.seq)
            .limit(batch)
        )
        rows = connection.execute(query).all()
        seqs = [row.seq for row in rows if row.received_at < older_than and not row.kept]
        if seqs:
            keep_records(connection, partition, seqs)
            connection.execute(tables.events.delete().where(e.partition == partition, e.seq.in_(seqs)))
    goes_on = len(rows) == batch and rows[-1].received_at < older_than
    return len(seqs), rows[-1].seq if goes_on else None


def _passed(connection: sa.Connection, partition: int) -> int:
    """The seq up to which every cursor of the partition has come; the log's head where there is none."""
    c = tables.cursors.c
    least = sa.select(sa.func.min(c.position)).where(c.partition == partition, c.position < c.until).scalar_subquery()
    return int(connection.execute(sa.select(sa.func.coalesce(least, tables.log_head.c.last_seq))).scalar_one())


def _referred() -> list[sa.ColumnElement[bool]]:
    """The conditions under which an event is still needed although every cursor has passed it."""
    e = tables.events.c
    return [
        sa.exists().where(table.c.partition == e.partition, table.c.seq == e.seq).correlate(tables.events)
        for table in (tables.parked, tables.dead_letters)
    ]
