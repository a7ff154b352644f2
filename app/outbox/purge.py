"""Remove what retention no longer asks for from the tail of the log, in batches that hold no lock for long."""

import sqlalchemy as sa

from app.outbox import models as m
from app.outbox.database import Database
from app.outbox.version_retention import drop_unused, keep_records


def purge(database: Database, older_than: int, *, batch: int = 1000, most: int = 100_000) -> int:
    """Delete events received before `older_than` (ms) that every cursor has passed and nothing refers to.

    Says how many went; stops after `most`, so that a purge is never long: the next one goes on. What a mirror needs of
    them is kept with what it knows of its keys.
    """
    c = m.cursors.c
    with database.reading() as connection:
        lanes = connection.execute(sa.select(m.log_head.c.lanes)).scalar_one()
        head = connection.execute(sa.select(m.log_head.c.last_seq)).scalar_one()
        passed = dict.fromkeys(range(lanes), head)
        unfinished = sa.select(c.lane, sa.func.min(c.position).label("position")).where(c.position < c.until)
        for row in connection.execute(unfinished.group_by(c.lane)):
            passed[row.lane] = min(row.position, head)
    gone = 0
    for lane, position in passed.items():
        while gone < most:
            count = _purge_some(database, lane, position, older_than, batch)
            gone += count
            if count < batch:
                break
    drop_unused(database)
    return gone


def _purge_some(database: Database, lane: int, position: int, older_than: int, batch: int) -> int:
    e = m.events.c
    referred = [
        sa.exists().where(table.c.lane == e.lane, table.c.seq == e.seq).correlate(m.events)
        for table in (m.parked, m.dead_letters)
    ]
    query = (
        sa.select(e.seq)
        .where(e.lane == lane, e.seq <= position, e.received_at < older_than, *(~one for one in referred))
        .order_by(e.seq)
        .limit(batch)
    )
    with database.writing() as connection:
        seqs = connection.execute(query).scalars().all()
        if seqs:
            keep_records(connection, lane, seqs)
            connection.execute(m.events.delete().where(e.lane == lane, e.seq.in_(seqs)))
    return len(seqs)
