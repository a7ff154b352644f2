"""Write a batch: a statement for each kind of change, with all of its rows, of which PostgreSQL says how many it wrote.

A trigger may discard a row without an error, for which PostgreSQL then counts none.
"""

import io
from collections.abc import Sequence

import psycopg2
from psycopg2 import extensions, sql

from app.events.model import Event
from workers.systems.postgresql.table import Table
from workers.targets.messages import Write
from workers.targets.payloads import change, collapse, timestamp

_VERSION = "{Records,0,s3,object,versionId}"


class RowsDiscarded(psycopg2.DataError):
    """PostgreSQL accepted a statement and has not all of its rows."""

    def __init__(self, count: int, of: int) -> None:
        super().__init__(f"the table has kept {count} of {of} rows; does a trigger discard them, by RETURN NULL?")


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
    if rows.removed:
        statement = sql.SQL("DELETE FROM {table} WHERE {key} = ANY(%s::text[])").format(**names)
        statements.append(cursor.mogrify(statement, (list(rows.removed),)))
    if rows.versions:
        statement = sql.SQL(
            "DELETE FROM {table} AS held USING unnest(%s::text[], %s::text[]) AS given(k, v) "
            "WHERE held.{key} = given.k "
            "AND coalesce(nullif(held.{value}::jsonb #>> {version}, ''), 'null') = given.v"
        ).format(**names)
        paths, versions = zip(*rows.versions, strict=True)
        statements.append(cursor.mogrify(statement, (list(paths), list(versions))))
    documents = (list(rows.documents), list(rows.documents.values()))
    if rows.documents:
        # In the order of the keys, so that two writers of the same rows wait for each other without a deadlock.
        statement = sql.SQL(
            "INSERT INTO {table} ({key}, {value}) "
            "SELECT k, v::{type} FROM unnest(%s::text[], %s::text[]) AS given(k, v) ORDER BY k "
            "ON CONFLICT ({key}) DO UPDATE SET {value} = EXCLUDED.{value}"
        ).format(**names)
        statements.append(cursor.mogrify(statement, documents))  # last: it is the statement whose rows are counted
    cursor.execute(b"; ".join(statements))
    if cursor.rowcount < len(rows.documents):
        # Not counted are also a row that a trigger left alone as it was the same, and one in a table that inherits.
        statement = sql.SQL(
            "SELECT count(*) FROM {table} AS held JOIN unnest(%s::text[], %s::text[]) AS given(k, v) "
            "ON held.{key} = given.k AND held.{value}::text = v::{type}::text"
        ).format(**names)
        cursor.execute(statement, documents)
        ((count,),) = cursor.fetchall()
        if count < len(rows.documents):
            raise RowsDiscarded(count, len(rows.documents))


def append(cursor: extensions.cursor, table: Table, events: Sequence[Event], write: Write) -> None:
    """Copy a row for each event, as it is written, into the table. Raises `RowsDiscarded`."""
    rows = "".join(f"{timestamp(event)}\t{_copied(write(event))}\n" for event in events)
    statement = sql.SQL("COPY {} ({}, {}) FROM STDIN").format(
        sql.Identifier(table.name), sql.Identifier(table.key), sql.Identifier(table.value)
    )
    cursor.copy_expert(statement, io.StringIO(rows))
    if cursor.rowcount < len(events) and not table.is_inherited:
        raise RowsDiscarded(cursor.rowcount, len(events))


def _copied(value: str) -> str:
    """Escape the four characters that have a meaning in COPY's text format."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")
