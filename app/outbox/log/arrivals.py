"""Know which part of the log has events for a target, without a search of the log.

An event's targets are a text column of the event. So each append also records, for every target and partition of its
events, the seq of the last one: a cursor has events after it if it is less than that, and none otherwise. Where an
event came after many events of other targets, the row remembers this gap, so that nobody reads those to find it.

Code of 0.2 records events and no arrivals, while both versions run and after a rollback. `log_head.arrivals_seq` is the
seq up to which arrivals are complete; an append of such code leaves it behind the log's head. Until `catch_up` has read
those events, any cursor may have some after it.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa

from app.outbox import log_head, tables
from app.outbox.column_values import WHOLE_LOG
from app.outbox.engine.database import Database
from app.outbox.engine.many_rows import chunks
from app.outbox.policies import ARRIVALS


class Arrival(NamedTuple):
    """The first and the last event of an append for a target in a partition, as seqs."""

    target_id: int
    partition: int
    first: int
    last: int


class LogWindow(NamedTuple):
    """A part of the log, after one seq and up to another, that may have events of a target in a partition."""

    target_id: int
    partition: int
    after: int
    until: int

    @property
    def first_part(self) -> "LogWindow":
        """The part that one search reads: it scans every event of other targets in between, and stays short."""
        return self._replace(until=min(self.until, self.after + WINDOW_SEQS))


WINDOW_SEQS = 10_000  # that one search scans at most
# The target's events in a window, as `many_rows.search_each` makes a search of it.
IN_WINDOW = (
    "FROM events WHERE {column} = {partition} AND seq > {after} AND seq <= {until} AND targets LIKE {pattern}"
    " ORDER BY {column}, seq"
)
_A, _C = tables.arrivals.c, tables.cursors.c
_HEAD, _ARRIVALS_SEQ = (sa.select(tables.log_head.c[name]).scalar_subquery() for name in ("last_seq", "arrivals_seq"))
_ROW = (_A.last_seq, _A.gap_after, _A.gap_until)
# What `unread` needs to know of a cursor, which it takes from rows of `CURSORS`.
CURSOR = (_C.target_id, _C.partition, _C.position, _HEAD.label("head"), _ARRIVALS_SEQ.label("arrivals_seq"), *_ROW)
CURSORS = tables.cursors.outerjoin(tables.arrivals, sa.and_(_A.target_id == _C.target_id, _A.partition == _C.partition))
# The condition that `unread` finds something.
HAS_UNREAD = _C.position < sa.case((_ARRIVALS_SEQ < _HEAD, _HEAD), else_=_A.last_seq)


def unread(cursor: Any) -> LogWindow | None:
    """Return the part of the log after a target's own cursor that has events for it; None if there are none.

    `cursor` is a row with the columns `CURSOR`.
    """
    return _window(cursor, cursor.target_id, cursor.partition, cursor.position)


def unread_of_targets(connection: sa.Connection, target_ids: Collection[int] | None = None) -> list[LogWindow]:
    """Return the parts of the log after the own cursors of some targets, or all, that have events for them."""
    query = sa.select(*CURSOR).select_from(CURSORS).where(_C.replay_id == WHOLE_LOG, HAS_UNREAD)
    query = query.order_by(_C.target_id, _C.partition)
    if target_ids is None:
        parts = [query]
    else:
        parts = [query.where(_C.target_id.in_(some)) for some in chunks(sorted(target_ids))]
    windows = (unread(row) for part in parts for row in connection.execute(part))
    return [window for window in windows if window is not None]


def unread_after(
    connection: sa.Connection, target_id: int, positions: Mapping[int, int], newer_than: int = 0
) -> dict[int, LogWindow]:
    """Return the parts of the log that have events of a target after these positions, by partition.

    With `newer_than`, only those that have an event after that seq. One statement, which reads the target's rows.
    """
    least = max(newer_than, min(positions.values(), default=0))
    rows = connection.execute(_OF_TARGET, {"target_id": target_id, "least": least}).all()
    by_partition: dict[int, Any] = {row.partition: row for row in rows}
    windows = (
        _window(by_partition.get(partition, rows[0]), target_id, partition, position)
        for partition, position in positions.items()
        if partition in by_partition or rows[0].arrivals_seq < rows[0].head
    )
    return {window.partition: window for window in windows if window is not None}


def _of_target() -> sa.Select[Any]:
    head, least = tables.log_head.c, sa.bindparam("least", type_=sa.BigInteger)
    mine = sa.and_(_A.target_id == sa.bindparam("target_id"), _A.last_seq > least, _A.last_seq <= head.last_seq)
    query = sa.select(head.last_seq.label("head"), head.arrivals_seq, _A.partition, *_ROW)
    return query.select_from(tables.log_head.outerjoin(tables.arrivals, mine))


_OF_TARGET = _of_target()


def _window(row: Any, target_id: int, partition: int, position: int) -> LogWindow | None:
    # The row may be of another partition if the arrivals are incomplete: see `unread_after`.
    known = row.last_seq is not None and row.partition == partition
    until = row.head if row.arrivals_seq < row.head else row.last_seq if known else 0
    if position >= until:
        return None
    after = row.gap_until if known and row.gap_after <= position < row.gap_until else position
    return LogWindow(target_id, partition, after, until)


def record(connection: sa.Connection, arrivals: Iterable[Arrival], *, complete: bool = True) -> None:
    """Add the events of an append. The caller has locked the log's head.

    They are not `complete` if events before them may be missing: then no gap before them is remembered.
    """
    rows = [
        f"({target_id:d}, {partition:d}, {last:d}, 0, {first - 1 if complete else 0:d})"
        for target_id, partition, first, last in arrivals
    ]
    statement = _upsert(connection)
    for some in chunks(rows):
        connection.exec_driver_sql(statement.format(rows=", ".join(some)), execution_options={"no_parameters": True})


def _upsert(connection: sa.Connection) -> str:
    """Return the statement that adds rows, in which `{rows}` stands for them."""
    is_mysql = connection.dialect.name in ("mysql", "mariadb")
    partition = connection.dialect.identifier_preparer.quote("partition")
    new = "VALUES({})" if is_mysql else "excluded.{}"
    last = new.format("last_seq")
    since = f"{new.format('gap_until')} - arrivals.last_seq >= {ARRIVALS.min_gap_seqs:d}"
    # In this order, because MySQL runs the assignments one by one, and all need the old seq.
    changes = (
        f"gap_after = CASE WHEN {since} THEN arrivals.last_seq ELSE arrivals.gap_after END",
        f"gap_until = CASE WHEN {since} THEN {new.format('gap_until')} ELSE arrivals.gap_until END",
        f"last_seq = CASE WHEN arrivals.last_seq < {last} THEN {last} ELSE arrivals.last_seq END",
    )
    conflict = "ON DUPLICATE KEY UPDATE" if is_mysql else f"ON CONFLICT (target_id, {partition}) DO UPDATE SET"
    return (
        f"INSERT INTO arrivals (target_id, {partition}, last_seq, gap_after, gap_until) VALUES {{rows}}"  # noqa: S608 - names
        f" {conflict} {', '.join(changes)}"
    )


def catch_up(database: Database) -> None:
    """Record the arrivals of events that code of 0.2 has recorded, a part of the log in each transaction.

    Of very many only the newest are read. Cursors before those count as having events up to there, until a worker has
    looked.
    """
    with database.reading() as connection:
        head = log_head.read(connection)
    while head.arrivals_seq < head.last_seq:
        with database.writing() as connection:
            head = log_head.lock(connection)
            first_read = head.last_seq - ARRIVALS.max_read_seqs
            if head.arrivals_seq < first_read:
                until, arrivals = first_read, _possible(connection, first_read)
            else:
                until = min(head.last_seq, head.arrivals_seq + ARRIVALS.batch_seqs)
                arrivals = _read(connection, head.partitions, head.arrivals_seq, until)
            record(connection, arrivals, complete=head.arrivals_seq >= first_read)
            for some in chunks(sorted({one.target_id for one in arrivals})):
                t = tables.targets.c
                changed = tables.targets.update().where(t.id.in_(some), t.last_seq < until)
                connection.execute(changed.values(last_seq=until))
            log_head.complete_arrivals(connection, until)
        head = head._replace(arrivals_seq=until)


def _possible(connection: sa.Connection, until: int) -> list[Arrival]:
    query = sa.select(_C.target_id, _C.partition).where(_C.replay_id == WHOLE_LOG, _C.position < until)
    return [Arrival(row.target_id, row.partition, until, until) for row in connection.execute(query)]


def _read(connection: sa.Connection, partitions: int, after: int, until: int) -> list[Arrival]:
    """Return the arrivals of the events in a part of the log."""
    e = tables.events.c
    query = (
        sa.select(e.partition, e.seq, e.targets)
        .where(e.partition.in_(range(partitions)), e.seq > after, e.seq <= until)
        .order_by(e.partition, e.seq)
    )
    ends: dict[tuple[int, int], tuple[int, int]] = {}
    for partition, seq, targets in connection.execute(query):
        for text in filter(None, targets.split(",")):
            place = int(text), partition
            ends[place] = ends.get(place, (seq, seq))[0], seq
    # A negative number is that of a target for which the event was discarded.
    return [Arrival(*place, *seqs) for place, seqs in ends.items() if place[0] > 0]
