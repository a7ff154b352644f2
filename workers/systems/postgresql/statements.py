"""Write a batch: a statement for each kind of change, with all of its rows, of which PostgreSQL says how many it wrote.

A trigger may discard a row without an error, for which PostgreSQL then counts none. As a row that is to be removed need
not be there, the last statement counts those that still are.
"""

import io
from collections.abc import Iterator, Sequence

import psycopg2
from psycopg2 import extensions, sql

from app.events.model import Event
from workers.systems.postgresql.table import Table
from workers.targets.messages import Write
from workers.targets.payloads import Rows, change, collapse, timestamp

_VERSION = "{Records,0,s3,object,versionId}"


class RowsDiscarded(psycopg2.DataError):
    """PostgreSQL accepted a statement and has not written or not removed all of its rows."""


def _discarded(count: int, of: int) -> RowsDiscarded:
    return RowsDiscarded(f"the table has kept {count} of {of} rows; does a trigger discard them, by RETURN NULL?")


def mirror(cursor: extensions.cursor, table: Table, events: Sequence[Event], first: str) -> None:
    """Leave the table as the events, applied one after the other, would; `first` is in the same round trip.

    Raises `RowsDiscarded`.
    """
    rows = collapse(change(event, "namespace") for event in events)
    names = {
        "table": sql.Identifier(table.name),
        "key": sql.Identifier(table.key),
        "value": sql.Identifier(table.value),
        "type": sql.SQL(table.value_type),
        "version": sql.Literal(_VERSION),
    }
    statements = [first.encode()]
    left: list[bytes] = []  # queries that count the rows that were to be removed
    for given, condition, values in _removals(rows):
        for made, start, join in ((statements, "DELETE", "USING"), (left, "SELECT count(*)", "CROSS JOIN")):
            source = f"{join} {given} " if given else ""
            statement = sql.SQL(f"{start} FROM {{table}} AS held {source}WHERE {condition}").format(**names)
            made.append(cursor.mogrify(statement, values))
    documents = (list(rows.documents), list(rows.documents.values()))
    if rows.documents:
        # In the order of the keys, so that two writers of the same rows wait for each other without a deadlock.
        statement = sql.SQL(
            "INSERT INTO {table} ({key}, {value}) "
            "SELECT k, v::{type} FROM unnest(%s::text[], %s::text[]) AS given(k, v) ORDER BY k "
            "ON CONFLICT ({key}) DO UPDATE SET {value} = EXCLUDED.{value}"
        ).format(**names)
        statements.append(cursor.mogrify(statement, documents))
    written, remaining = _execute(cursor, statements, left)
    if remaining:
        raise RowsDiscarded(
            f"{remaining} of the deleted rows are still in the table; does a trigger, a rule or a policy keep them?"
        )
    if written < len(rows.documents):
        # Not counted are also a row that a trigger left alone as it was the same, and one in a table that inherits.
        statement = sql.SQL(
            "SELECT count(*) FROM {table} AS held JOIN unnest(%s::text[], %s::text[]) AS given(k, v) "
            "ON held.{key} = given.k AND held.{value}::text = v::{type}::text"
        ).format(**names)
        cursor.execute(statement, documents)
        ((count,),) = cursor.fetchall()
        if count < len(rows.documents):
            raise _discarded(count, len(rows.documents))


def _removals(rows: Rows) -> Iterator[tuple[str, str, tuple[list[str], ...]]]:
    """Yield what is joined with the table, which of its rows have to go, and the values for this."""
    if rows.removed:
        yield "", "held.{key} = ANY(%s::text[])", (list(rows.removed),)
    if rows.versions:
        described = "coalesce(nullif(held.{value}::jsonb #>> {version}, ''), 'null')"
        paths, versions = zip(*rows.versions, strict=True)
        given = "unnest(%s::text[], %s::text[]) AS given(k, v)"
        yield given, f"held.{{key}} = given.k AND {described} = given.v", (list(paths), list(versions))


def _execute(cursor: extensions.cursor, statements: Sequence[bytes], left: Sequence[bytes]) -> tuple[int, int]:
    """Execute the statements in one round trip; return how many rows the last has written, and how many are left.

    PostgreSQL answers several statements with the result of the last one.
    """
    if not left:
        cursor.execute(b"; ".join(statements))
        return cursor.rowcount, 0
    *before, last = statements
    counts = b" + ".join(b"(%b)" % query for query in left)
    if last.startswith(b"INSERT"):
        query = b"WITH written AS (%b RETURNING 1) SELECT (SELECT count(*) FROM written), %b" % (last, counts)
    else:
        before, query = [*statements], b"SELECT 0, " + counts
    cursor.execute(b"; ".join([*before, query]))
    ((written, remaining),) = cursor.fetchall()
    return written, remaining


def append(cursor: extensions.cursor, table: Table, events: Sequence[Event], write: Write) -> None:
    """Copy a row for each event, as it is written, into the table. Raises `RowsDiscarded`."""
    rows = "".join(f"{timestamp(event)}\t{_copied(write(event))}\n" for event in events)
    statement = sql.SQL("COPY {} ({}, {}) FROM STDIN").format(
        sql.Identifier(table.name), sql.Identifier(table.key), sql.Identifier(table.value)
    )
    cursor.copy_expert(statement, io.StringIO(rows))
    if cursor.rowcount < len(events) and not table.is_inherited:
        raise _discarded(cursor.rowcount, len(events))


def _copied(value: str) -> str:
    """Escape the four characters that have a meaning in COPY's text format."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")
