"""Read the events after a position of the log, in the order in which they were recorded.

Reading takes no lock and skips no event, because commits happen in the order of `seq`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from app.outbox import log_head, tables
from app.outbox.engine.database import Database
from app.outbox.engine.many_rows import chunks
from app.outbox.log.records import TOO_LONG, readable, small_record, within_budget
from app.outbox.log_head import LogHead, LogState

_e = tables.events.c
_PLACE = sa.select(_e.seq, _e.bucket).where(_e.id == sa.bindparam("event_id"))
_SINCE = sa.select(sa.func.min(_e.seq)).where(_e.received_at >= sa.bindparam("since"))
_BETWEEN = (
    sa.select(_e.seq, _e.id, _e.received_at, _e.name, _e.bucket, _e.key, _e.targets, small_record, _e.partition)
    .where(
        _e.partition.in_(sa.bindparam("partitions", expanding=True)),  # because the primary key begins with it
        _e.seq > sa.bindparam("after"),
        _e.seq <= sa.bindparam("last"),
    )
    .order_by(_e.seq)
)


def log_end(database: Database) -> LogHead:
    """Return the log's head, whose `last_seq` is the log's end; reads one row of one table."""
    with database.reading() as connection:
        return log_head.read(connection)


def position_of(database: Database, event_id: str, bucket: str = "") -> int | None:
    """Return the seq of an event, None if the log does not (or no longer) contain it, or it is of another bucket."""
    with database.reading() as connection:
        row = connection.execute(_PLACE, {"event_id": event_id}).one_or_none()
    return None if row is None or (bucket and row.bucket != bucket) else row.seq


def log_state(database: Database) -> tuple[LogHead, LogState]:
    """Return the log's head, and its end and epoch, which are of one moment: those of the head are the same."""
    with database.reading() as connection:
        head, state = log_head.read(connection), log_head.read_state(connection)
    return head._replace(last_seq=state.last_seq), state


def ids_between(database: Database, partitions: int, after: int, last: int) -> list[tuple[int, str]]:
    """Return the seqs and ids of the events after `after` up to `last`, in order."""
    query = sa.select(_e.seq, _e.id).where(_e.partition.in_(range(partitions)), _e.seq > after, _e.seq <= last)
    with database.reading() as connection:
        return [(row.seq, row.id) for row in connection.execute(query.order_by(_e.seq))]


def last_kept(database: Database, known: Sequence[tuple[int, str]], before: int) -> int:
    """Return the last of these seqs, which are in order, up to which the log still has the events of these ids.

    That is `before` if it does not have the first. Of events that were lost others may be the next at their seqs.
    """
    kept = before
    for some in chunks(known):
        with database.reading() as connection:
            rows = connection.execute(sa.select(_e.id, _e.seq).where(_e.id.in_([event_id for _, event_id in some])))
            seqs = {row.id: row.seq for row in rows}
        for seq, event_id in some:
            if seqs.get(event_id) != seq:
                return kept
            kept = seq
    return kept


class LogEvent(NamedTuple):
    """An event of the log, as streams read it; `targets` are the numbers of its targets, between commas."""

    seq: int
    id: str
    received_at: int
    name: str
    bucket: str
    key: str
    targets: str
    record: str


def events_between(database: Database, partitions: int, after: int, last: int) -> tuple[list[LogEvent], int]:
    """Return the events after `after` up to `last`, and the seq up to which they were read.

    That is before `last` if the records exceed the budget of bytes, which has one event at least. There may be fewer
    events than seqs, because not every seq has an event, and an event whose record is too long to be read is left out.
    """
    window = {"partitions": list(range(partitions)), "after": after, "last": last}
    with database.reading() as connection:
        rows = connection.execute(_BETWEEN, window).all()
        records = within_budget(connection, ((row.partition, row.seq, row.record) for row in rows))
    if len(records) < len(rows):
        last = rows[len(records)].seq - 1
    unread = (None, TOO_LONG)
    events = [LogEvent(*row[:7], record) for row, record in zip(rows, records, strict=False) if record not in unread]
    return events, last


def first_seq(database: Database, partitions: int) -> int:
    """Return the seq of the oldest event in the log, 1 for an empty log."""
    query = sa.select(sa.func.min(_e.seq)).where(_e.partition == sa.bindparam("partition"))
    with database.reading() as connection:  # by partition, because the primary key begins with it
        firsts = [connection.execute(query, {"partition": partition}).scalar_one() for partition in range(partitions)]
    return min((seq for seq in firsts if seq is not None), default=1)


def journal_rows(database: Database, partitions: int, after: int, last: int) -> Sequence[Any]:
    """Return the events after `after` up to `last`, in any order.

    Their columns: seq, received_at, id, time, name, bucket, key, version, sequencer, record.
    """
    columns = (_e.seq, _e.received_at, _e.id, _e.time, _e.name, _e.bucket, _e.key, _e.version, _e.sequencer)
    query = sa.select(*columns, readable(_e.record))
    with database.reading() as connection:
        window = query.where(_e.partition.in_(range(partitions)), _e.seq > after, _e.seq <= last)
        rows: Sequence[Any] = connection.execute(window).all()
    return rows


class LogReader:
    """A position in the log that advances as events are read."""

    def __init__(self, database: Database, since: int = 0) -> None:
        """Start at the log's end, or at the first event received at `since` or later (milliseconds since 1970)."""
        self._database = database
        self.after = log_end(database).last_seq
        if since:
            with database.reading() as connection:
                first = connection.execute(_SINCE, {"since": since}).scalar_one()
            self.after = self.after if first is None else first - 1

    def read(self, limit: int = 1000) -> Sequence[LogEvent]:
        """Return up to `limit` of the next events, as `events_between` does; none at the log's end."""
        end = log_end(self._database)
        while self.after < end.last_seq:
            last = min(self.after + limit, end.last_seq)
            events, self.after = events_between(self._database, end.partitions, self.after, last)
            if events:
                return events
        return ()
