"""Follow the log: the events behind a place, in the order in which they were recorded.

Reading takes no lock and passes over no event: commit order is seq order.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from app.outbox import tables
from app.outbox.engine.database import Database

_e = tables.events.c
_END = sa.select(tables.log_head.c.last_seq, tables.log_head.c.partitions)
_PLACE = sa.select(_e.seq).where(_e.id == sa.bindparam("event_id"))
_SINCE = sa.select(sa.func.min(_e.seq)).where(_e.received_at >= sa.bindparam("since"))
_BETWEEN = (
    sa.select(_e.seq, _e.id, _e.received_at, _e.name, _e.bucket, _e.key, _e.record)
    .where(
        _e.partition.in_(sa.bindparam("partitions", expanding=True)),  # for the table's key, which begins with it
        _e.seq > sa.bindparam("after"),
        _e.seq <= sa.bindparam("last"),
    )
    .order_by(_e.seq)
)


class LogEnd(NamedTuple):
    """How far the log goes, and how many partitions it has."""

    seq: int
    partitions: int


def log_end(database: Database) -> LogEnd:
    """The log's end: one row of one table."""
    with database.reading() as connection:
        return LogEnd(*connection.execute(_END).one())


def position_of(database: Database, event_id: str) -> int | None:
    """The seq of an event, None where the log does not hold it (any more)."""
    with database.reading() as connection:
        found: int | None = connection.execute(_PLACE, {"event_id": event_id}).scalar_one_or_none()
    return found


def events_between(database: Database, partitions: int, after: int, last: int) -> Sequence[Any]:
    """The events behind `after` up to `last`: seq, id, received_at, name, bucket, key, record.

    There may be fewer than seqs, as not every seq has an event.
    """
    with database.reading() as connection:
        wanted = {"partitions": list(range(partitions)), "after": after, "last": last}
        found: Sequence[Any] = connection.execute(_BETWEEN, wanted).all()
    return found


def first_seq(database: Database, partitions: int) -> int:
    """Return the first seq that the log still holds, 1 for an empty log."""
    query = sa.select(sa.func.min(_e.seq)).where(_e.partition == sa.bindparam("partition"))
    with database.reading() as connection:  # by partition, because the primary key begins with it
        firsts = [connection.execute(query, {"partition": partition}).scalar_one() for partition in range(partitions)]
    return min((seq for seq in firsts if seq is not None), default=1)


def journal_rows(database: Database, partitions: int, after: int, last: int) -> Sequence[Any]:
    """Return the events behind `after` up to `last`, in any order: id, time, name, bucket, key, version, record."""
    query = sa.select(_e.id, _e.time, _e.name, _e.bucket, _e.key, _e.version, _e.record)
    with database.reading() as connection:
        window = query.where(_e.partition.in_(range(partitions)), _e.seq > after, _e.seq <= last)
        rows: Sequence[Any] = connection.execute(window).all()
    return rows


class LogReader:
    """A place in the log that moves on as it is read."""

    def __init__(self, database: Database, since: int = 0) -> None:
        """Begin at the log's end, or at the first event received at `since` or later (milliseconds since 1970)."""
        self._database = database
        self.after = log_end(database).seq
        if since:
            with database.reading() as connection:
                first = connection.execute(_SINCE, {"since": since}).scalar_one()
            self.after = self.after if first is None else first - 1

    def read(self, limit: int = 1000) -> Sequence[Any]:
        """The next events as `events_between` has them, at most `limit`; none where there are no more yet."""
        found = log_end(self._database)
        while self.after < found.seq:
            last = min(self.after + limit, found.seq)
            events = events_between(self._database, found.partitions, self.after, last)
            self.after = last
            if events:
                return events
        return ()
