"""Read the log: its end, the events after a position, and records within a budget of bytes.

Reading takes no lock and skips no event, because commits happen in the order of `seq`.

A query reads hundreds of records, and one may have megabytes. So a query selects `small_record` in place of the record,
which leaves a long record out. `within_budget` then reads the long ones of as many events as the budget allows.

A record longer than `MAX_EVENT_BYTES` is never read: it is `TOO_LONG` in what these functions return. A version that
did not have this limit may have recorded it; whoever reads it would need several times its memory.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler

from app.events.limits import MAX_EVENT_BYTES
from app.events.names import AGGREGATES, expand
from app.outbox import log_head, tables
from app.outbox.engine.database import Database
from app.outbox.engine.many_rows import chunks
from app.outbox.log_head import LogHead, LogState
from app.outbox.policies import READ

TOO_LONG = "null"  # no record is that
_REMEMBERED = 1000  # events, by their ids

_E = tables.events.c


class _Size(sa.sql.functions.GenericFunction[int]):
    """A text's length in bytes; in SQLite, which has no such function before 3.43, in characters."""

    type = sa.Integer()
    name = "record_size"
    inherit_cache = True


@compiles(_Size)
def _octet_length(element: _Size, compiler: SQLCompiler, **options: Any) -> str:
    # PostgreSQL knows it without reading the text; MySQL counts `length` in bytes, too.
    function = "length" if compiler.dialect.name == "sqlite" else "octet_length"
    return f"{function}({compiler.process(element.clauses, **options)})"


small_record = sa.case((_Size(_E.record) <= READ.small_record_bytes, _E.record), else_="").label("record")
_PLACE = sa.select(_E.seq, _E.bucket).where(_E.id == sa.bindparam("event_id"))
_SINCE = sa.select(sa.func.min(_E.seq)).where(_E.received_at >= sa.bindparam("since"))
_BETWEEN = (
    sa.select(_E.seq, _E.id, _E.received_at, _E.name, _E.bucket, _E.key, _E.targets, small_record, _E.partition)
    .where(
        _E.partition.in_(sa.bindparam("partitions", expanding=True)),  # because the primary key begins with it
        _E.seq > sa.bindparam("after"),
        _E.seq <= sa.bindparam("last"),
    )
    .order_by(_E.seq)
)


def readable(record: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """Return the expression of a record, or of `TOO_LONG` in its place."""
    return sa.case((_Size(record) > MAX_EVENT_BYTES, TOO_LONG), else_=record).label("record")


# Told how many bytes of records are read next; it may wait until there is memory for them, or raise.
Reserve = Callable[[int], None]


def reserve_nothing(_size: int) -> None:
    """Read without asking anybody."""


def within_budget(
    connection: sa.Connection, events: Iterable[tuple[int, int, str]], reserve: Reserve = reserve_nothing
) -> list[str | None]:
    """Return the records of the first of these events, as many as have `READ.batch_bytes` together, but at least one.

    An event is its partition, its seq, and its `small_record`. None stands for an event that has left the log since,
    `TOO_LONG` for a record that is not read.
    """
    read = list(events)
    long = [(partition, seq) for partition, seq, record in read if not record]
    sizes = dict(_of(connection, long, _Size(_E.record))) if long else {}
    total, count = 0, 0
    for _, seq, record in read:
        size = len(record) or sizes.get(seq, 0)
        size = size if size <= MAX_EVENT_BYTES else 0
        if total + size > READ.batch_bytes and count:
            break
        total, count = total + size, count + 1
    reserve(total)
    kept = read[:count]
    long = [(partition, seq) for partition, seq, record in kept if not record]
    records = dict(_of(connection, long, readable(_E.record))) if long else {}
    return [record or records.get(seq) for _, seq, record in kept]


def first_within_budget(records: Iterable[str | None]) -> list[str | None]:
    """Return the first of these records, as many as have `READ.batch_bytes` together, but at least one.

    It reads one more at most.
    """
    kept: list[str | None] = []
    total = 0
    for record in records:
        total += len(record or "")
        if total > READ.batch_bytes and kept:
            break
        kept.append(record)
    return kept


def _of(connection: sa.Connection, places: Sequence[tuple[int, int]], column: Any) -> Iterable[tuple[int, Any]]:
    """Yield the seq and a column's value of each of these events that the log has."""
    for some in chunks(places):
        partitions, seqs = sorted({partition for partition, _ in some}), [seq for _, seq in some]
        query = sa.select(_E.seq, column).where(_E.partition.in_(partitions), _E.seq.in_(seqs))
        for row in connection.execute(query):
            yield row[0], row[1]


def is_named(column: sa.ColumnElement[str], names: Collection[str]) -> sa.ColumnElement[bool]:
    """Return the condition that a name is one of these, or an unknown member of one of the families among them."""
    conditions: list[sa.ColumnElement[bool]] = [column.in_(names)]
    for family in sorted(set(names) & AGGREGATES.keys()):
        prefix = family[:-1]
        # `substr` and not LIKE, which makes no difference between upper and lower case in SQLite.
        conditions.append(
            sa.and_(sa.func.substr(column, 1, len(prefix)) == prefix, column.not_in(sorted(expand(family))))
        )
    return sa.or_(*conditions)


def is_for(target_id: sa.ColumnElement[int] | int) -> sa.ColumnElement[bool]:
    """Return the condition that an event of the log goes to a target."""
    if isinstance(target_id, int):
        return _E.targets.like(f"%,{target_id},%")
    return _E.targets.like("%," + sa.cast(target_id, sa.String(20)) + ",%")


def is_discarded_for(target_id: int | None) -> sa.ColumnElement[bool]:
    """Return the condition that an event was discarded for a target, or for any."""
    return _E.targets.like("%,-%" if target_id is None else f"%,-{target_id},%")


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
    query = sa.select(_E.seq, _E.id).where(_E.partition.in_(range(partitions)), _E.seq > after, _E.seq <= last)
    with database.reading() as connection:
        return [(row.seq, row.id) for row in connection.execute(query.order_by(_E.seq))]


def last_kept(database: Database, known: Sequence[tuple[int, str]], before: int) -> int:
    """Return the last of these seqs, which are in order, up to which the log still has the events of these ids.

    That is `before` if it does not have the first. Of events that were lost others may be the next at their seqs.
    """
    kept = before
    for some in chunks(known):
        with database.reading() as connection:
            rows = connection.execute(sa.select(_E.id, _E.seq).where(_E.id.in_([event_id for _, event_id in some])))
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
    query = sa.select(sa.func.min(_E.seq)).where(_E.partition == sa.bindparam("partition"))
    with database.reading() as connection:  # by partition, because the primary key begins with it
        firsts = [connection.execute(query, {"partition": partition}).scalar_one() for partition in range(partitions)]
    return min((seq for seq in firsts if seq is not None), default=1)


def journal_rows(database: Database, partitions: int, after: int, last: int) -> Sequence[Any]:
    """Return the events after `after` up to `last`, in any order.

    Their columns: seq, received_at, id, time, name, bucket, key, version, sequencer, record.
    """
    columns = (_E.seq, _E.received_at, _E.id, _E.time, _E.name, _E.bucket, _E.key, _E.version, _E.sequencer)
    query = sa.select(*columns, readable(_E.record))
    with database.reading() as connection:
        window = query.where(_E.partition.in_(range(partitions)), _E.seq > after, _E.seq <= last)
        rows: Sequence[Any] = connection.execute(window).all()
    return rows


class LogReader:
    """A position in the log that advances as events are read, and goes back if the log loses some of these."""

    def __init__(self, database: Database, since: int = 0) -> None:
        """Start at the log's end, or at the first event received at `since` or later (milliseconds since 1970)."""
        self._database = database
        end, self._state = log_state(database)
        self.after = end.last_seq
        if since:
            with database.reading() as connection:
                first = connection.execute(_SINCE, {"since": since}).scalar_one()
            self.after = self.after if first is None else first - 1
        # The ids of the last events up to here, by which it is seen how many of them an older state of the log has.
        self._before = max(0, self.after - _REMEMBERED)
        self._known = ids_between(database, end.partitions, self._before, self.after)

    def read(self, limit: int = 1000) -> Sequence[LogEvent]:
        """Return up to `limit` of the next events, as `events_between` does; none at the log's end."""
        end, state = log_state(self._database)
        if not state.still_has(self._state.epoch, self.after):
            self._go_back(end)
        self._state = state
        while self.after < end.last_seq:
            last = min(self.after + limit, end.last_seq)
            events, self.after = events_between(self._database, end.partitions, self.after, last)
            if events:
                self._remember(events)
                return events
        return ()

    def _go_back(self, end: LogHead) -> None:
        """Go back to the last event that the log still has, of those that were read."""
        first = first_seq(self._database, end.partitions)  # what comes before was purged
        known = [one for one in self._known if one[0] >= first]
        self.after = min(last_kept(self._database, known, self._before), self.after, end.last_seq)
        self._known = [one for one in known if one[0] <= self.after]

    def _remember(self, events: Sequence[LogEvent]) -> None:
        self._known += [(event.seq, event.id) for event in events]
        if len(self._known) > 2 * _REMEMBERED:
            self._before = self._known[-_REMEMBERED - 1][0]
            self._known = self._known[-_REMEMBERED:]
