"""Insert many rows into one table by the database's fastest method: COPY on PostgreSQL, otherwise INSERT."""

import io
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import sqlalchemy as sa

from app.outbox.engine.db_errors import as_sqlalchemy

_WORTH_A_COPY = 8  # rows; with fewer, the extra round trip costs more than COPY saves
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def insert(connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows in the connection's transaction; each row has a value for every column, and none is NULL."""
    if connection.dialect.name == "postgresql" and len(rows) >= _WORTH_A_COPY:
        _copy(connection, table, rows)
    elif rows:
        connection.execute(table.insert(), rows)


def _copy(connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    quote = connection.dialect.identifier_preparer.quote
    names = [column.name for column in table.columns]
    values = itemgetter(*names)
    texts = "".join([_line(values(row)) for row in rows])
    statement = f"COPY {quote(table.name)} ({', '.join(map(quote, names))}) FROM STDIN"
    driver: Any = connection.connection.driver_connection
    with as_sqlalchemy(driver, statement, connection.invalidate), driver.cursor() as cursor:
        cursor.copy_expert(statement, io.StringIO(texts))


def _line(values: Sequence[object]) -> str:
    """Format a row in COPY's text format. Most rows need no escaping, which a quick check shows."""
    line = "\t".join(map(str, values))
    if "\\" in line or "\n" in line or "\r" in line or line.count("\t") >= len(values):
        line = "\t".join([str(value).translate(_ESCAPES) for value in values])
    return line + "\n"
