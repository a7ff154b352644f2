"""Insert many rows of one table by the fastest way that the database has: COPY on PostgreSQL, elsewhere an INSERT."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

_WORTH_A_COPY = 8  # rows; below it the extra round trip costs more than it saves


def insert(connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows, each with a value other than NULL for every column, in the connection's transaction."""
    if connection.dialect.name == "postgresql" and len(rows) >= _WORTH_A_COPY:
        _copy(connection, table, rows)
    elif rows:
        connection.execute(table.insert(), rows)


def _copy(connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    quote = connection.dialect.identifier_preparer.quote
    names = [column.name for column in table.columns]
    texts = "".join("\t".join([_written(row[name]) for name in names]) + "\n" for row in rows)
    statement = f"COPY {quote(table.name)} ({', '.join(map(quote, names))}) FROM STDIN"
    driver: Any = connection.connection.driver_connection
    with driver.cursor() as cursor:
        try:
            cursor.copy_expert(statement, io.StringIO(texts))
        except driver.Error as error:
            if driver.closed:
                connection.invalidate(error)
            # As from any other statement, so that callers need to know one kind of errors only.
            raise sa.exc.DBAPIError.instance(statement, None, error, driver.Error) from error


def _written(value: object) -> str:
    """A value in COPY's text format."""
    if not isinstance(value, str):
        return str(value)
    if "\\" in value:
        value = value.replace("\\", "\\\\")
    if value.isprintable():
        return value
    return value.replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
