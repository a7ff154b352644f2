"""Select events by name or target, and read their records within a budget of bytes: a query reads hundreds of them.

One may have megabytes. A query selects `small_record` in place of the record, which leaves a long record out.
`within_budget` then reads the long ones of as many events as the budget allows.

A record longer than `MAX_EVENT_BYTES` is never read: it is `TOO_LONG` in what these functions return. A version that
did not have this limit may have recorded it; whoever reads it would need several times its memory.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler

from app.events.limits import MAX_EVENT_BYTES
from app.events.names import AGGREGATES, expand
from app.outbox import tables
from app.outbox.engine.many_rows import chunks
from app.outbox.policies import READ

TOO_LONG = "null"  # no record is that

_e = tables.events.c


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


small_record = sa.case((_Size(_e.record) <= READ.small_record_bytes, _e.record), else_="").label("record")


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
    sizes = dict(_of(connection, long, _Size(_e.record))) if long else {}
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
    records = dict(_of(connection, long, readable(_e.record))) if long else {}
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
        query = sa.select(_e.seq, column).where(_e.partition.in_(partitions), _e.seq.in_(seqs))
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
        return _e.targets.like(f"%,{target_id},%")
    return _e.targets.like("%," + sa.cast(target_id, sa.String(20)) + ",%")


def is_discarded_for(target_id: int | None) -> sa.ColumnElement[bool]:
    """Return the condition that an event was discarded for a target, or for any."""
    return _e.targets.like("%,-%" if target_id is None else f"%,-{target_id},%")
