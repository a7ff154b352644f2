"""The table of a PostgreSQL target: an existing table of MinIO, or one created as MinIO does (reference §4.10)."""

from dataclasses import dataclass
from typing import Any

import psycopg2
from psycopg2 import extensions, sql

from workers.targets.base import TargetUnavailable

_LAYOUT = {
    "namespace": ("key", "value", "key varchar PRIMARY KEY, value jsonb"),
    "access": ("event_time", "event_data", "event_time timestamp with time zone NOT NULL, event_data jsonb"),
}

# The rows are read as JSON, because one column is newer than PostgreSQL 9.5.
_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod),
       a.attnotnull AND NOT a.atthasdef AND coalesce(to_jsonb(a) ->> 'attidentity', '') = ''
FROM pg_attribute a WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
"""

_INHERITED = "SELECT 1 FROM pg_inherits WHERE inhparent = %s"

_UNIQUE = """
SELECT 1 FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
WHERE i.indrelid = %s AND a.attname = %s AND i.indisunique AND i.indisvalid AND i.indimmediate
AND i.indpred IS NULL AND i.indexprs IS NULL AND coalesce((to_jsonb(i) ->> 'indnkeyatts')::int, i.indnatts) = 1
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
    columns: dict[str, tuple[str, bool]] = {row[0]: (row[1], row[2]) for row in cursor.fetchall()}
    if missing := [column for column in (key, value) if column not in columns]:
        raise TargetUnavailable(
            f"PostgreSQL: table {name} has no column {missing[0]}, which format {format} needs; "
            f"it has {', '.join(columns)}. Give each format a table of its own"
        )
    if required := [column for column, (_, needed) in columns.items() if needed and column not in (key, value)]:
        raise TargetUnavailable(
            f"PostgreSQL: table {name} requires a value for {', '.join(required)}, which events lack; give it a default"
        )
    is_table = kind in ("r", "p")  # the table behind a view or a foreign table can only be checked by writing
    if format == "namespace" and is_table and not _has_row(cursor, _UNIQUE, (number, key)):
        raise TargetUnavailable(
            f"PostgreSQL: table {name} has no unique index on {key} alone, so a row cannot be replaced; "
            f'ALTER TABLE … ADD PRIMARY KEY ("{key}")'
        )
    is_inherited = kind == "r" and _has_row(cursor, _INHERITED, (number,))
    return Table(name, key, value, columns[value][0], is_inherited)


def _has_row(cursor: extensions.cursor, query: str, values: tuple[Any, ...]) -> bool:
    cursor.execute(query, values)
    return cursor.fetchone() is not None
