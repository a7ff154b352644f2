"""An outbox that becomes an older state of itself, as after a failover to a lagging replica or a restore."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from app.outbox import tables
from app.outbox.engine.database import Database

_STATE = (
    tables.targets,
    tables.rules,
    tables.replays,
    tables.cursors,
    tables.arrivals,
    tables.events,
    tables.sources,
    tables.watched_buckets,
    tables.watched_chunks,
    tables.log_head,
)


@contextmanager
def older_state(database: Database) -> Iterator[None]:
    """Restore the outbox, at the end of the block, as it was at its beginning, as another server would have it."""
    with database.reading() as connection:
        rows = {table: [dict(row._mapping) for row in connection.execute(sa.select(table))] for table in _STATE}
    yield
    with database.writing() as connection:
        for table in reversed(_STATE):
            connection.execute(table.delete())
        for table in _STATE:
            if rows[table]:
                connection.execute(table.insert(), rows[table])
