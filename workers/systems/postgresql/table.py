"""The table of a PostgreSQL target: an existing table of MinIO, or one created as MinIO does (reference §4.10).

A batch is written by a statement for each kind of change, with all of its rows, of which PostgreSQL says how many it
wrote. A trigger may discard a row without an error, for which PostgreSQL then counts none. As a row that is to be
removed need not be there, the last statement counts those that still are.
"""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg2
from psycopg2 import extensions, sql

from app.events.model import Event
from workers.targets.base import TargetUnavailable
from workers.targets.messages import Write
from workers.targets.payloads import Rows, change, collapse, timestamp

_LAYOUT = {
    "namespace": ("key", "value", "key varchar PRIMARY KEY, value jsonb"),
    "access": ("event_time", "event_data", "event_time timestamp with time zone NOT NULL, event_data jsonb"),
}

# The rows are read as JSON, because some columns are newer than PostgreSQL 9.5. A type is named without its length and
# its domain: a cast to them would cut a value, where an assignment refuses it.
_COLUMNS = """
SELECT a.attname, format_type(CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END, -1),
       a.attnotnull AND NOT a.atthasdef AND coalesce(to_jsonb(a) ->> 'attidentity', '') = '',
       coalesce((to_jsonb(c) ->> 'collisdeterministic')::boolean, true)
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_collation c ON c.oid = a.attcollation
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
"""

_INHERITED = "SELECT 1 FROM pg_inherits WHERE inhparent = %s"

# The types by which each key is another one; `char` ignores spaces at the end, `citext` the case, `name` has 63 bytes.
_EXACT = ("text", "character varying")

# Whether each unique index distinguishes all keys; no row without such an index.
_UNIQUE = """
SELECT bool_and(coalesce((to_jsonb(c) ->> 'collisdeterministic')::boolean, true))
FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
LEFT JOIN pg_collation c ON c.oid = i.indcollation[0]
WHERE i.indrelid = %s AND a.attname = %s AND i.indisunique AND i.indisvalid AND i.indimmediate
AND i.indpred IS NULL AND i.indexprs IS NULL AND coalesce((to_jsonb(i) ->> 'indnkeyatts')::int, i.indnatts) = 1
HAVING count(*) > 0
"""


@dataclass(frozen=True)
class Table:
    """A table that can be written: its name as PostgreSQL stores it, its two columns, the type of the second one."""

    name: str
    key: str
    value: str
    value_type: str
    # Before PostgreSQL 10 tables were partitioned by a trigger, which writes a row elsewhere, where it is not counted.
    is_inherited: bool


def take_table(cursor: extensions.cursor, name: str, format: str) -> Table:  # noqa: A002 (the setting's name)
    """Return the table, created if missing, in the transaction of `cursor`; this queries the catalogue, no rows.

    Raises `TargetUnavailable` if the table does not fit the format, psycopg2's errors if the server refuses.
    """
    relation = _find(cursor, name)
    if relation is None:
        statement = sql.SQL("SAVEPOINT absent; CREATE TABLE IF NOT EXISTS {} ({})")
        try:
            cursor.execute(statement.format(sql.Identifier(name), sql.SQL(_LAYOUT[format][2])))
        except (psycopg2.errors.UniqueViolation, psycopg2.errors.DuplicateTable, psycopg2.errors.DuplicateObject):
            # Another worker was faster, which IF NOT EXISTS does not always detect.
            cursor.execute("ROLLBACK TO SAVEPOINT absent")
        relation = _find(cursor, name)
    if relation is None:
        raise TargetUnavailable(f"PostgreSQL: table {name} was created but is not on the search_path")
    number, schema, kind = relation
    if schema in ("pg_catalog", "information_schema"):
        raise TargetUnavailable(f"PostgreSQL: {name} is a table of PostgreSQL's own ({schema}); choose another name")
    return _checked(cursor, name, format, number, kind)


def _find(cursor: extensions.cursor, name: str) -> tuple[int, str, str] | None:
    cursor.execute(
        "SELECT c.oid, n.nspname, c.relkind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE c.oid = to_regclass(%s)",
        (extensions.quote_ident(name, cursor),),
    )
    row: tuple[int, str, str] | None = cursor.fetchone()
    return row


def _checked(cursor: extensions.cursor, name: str, format: str, number: int, kind: str) -> Table:  # noqa: A002
    key, value, _ = _LAYOUT[format]
    cursor.execute(_COLUMNS, (number,))
    columns: dict[str, tuple[str, bool, bool]] = {row[0]: row[1:] for row in cursor.fetchall()}
    if missing := [column for column in (key, value) if column not in columns]:
        raise TargetUnavailable(
            f"PostgreSQL: table {name} has no column {missing[0]}, which format {format} needs; "
            f"it has {', '.join(columns)}. Give each format a table of its own"
        )
    if required := [column for column, (_, needed, _) in columns.items() if needed and column not in (key, value)]:
        raise TargetUnavailable(
            f"PostgreSQL: table {name} requires a value for {', '.join(required)}, which events lack; give it a default"
        )
    is_table = kind in ("r", "p")  # the table behind a view or a foreign table can only be checked by writing
    if format == "namespace":
        kind_of_key, _, is_exact = columns[key]
        unique = _row(cursor, _UNIQUE, (number, key)) if is_table else (True,)
        if unique is None:
            raise TargetUnavailable(
                f"PostgreSQL: table {name} has no unique index on {key} alone, so a row cannot be replaced; "
                f'ALTER TABLE … ADD PRIMARY KEY ("{key}")'
            )
        if kind_of_key not in _EXACT or not is_exact or not unique[0]:
            raise TargetUnavailable(
                f"PostgreSQL: table {name} takes some different values of {key} for the same, by its type "
                f"({kind_of_key}) or a collation, so an object's row would replace another's; "
                f'ALTER TABLE … ALTER "{key}" TYPE text COLLATE "C"'
            )
    is_inherited = kind == "r" and _row(cursor, _INHERITED, (number,)) is not None
    return Table(name, key, value, columns[value][0], is_inherited)


def _row(cursor: extensions.cursor, query: str, values: tuple[Any, ...]) -> tuple[Any, ...] | None:
    cursor.execute(query, values)
    row: tuple[Any, ...] | None = cursor.fetchone()
    return row


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
