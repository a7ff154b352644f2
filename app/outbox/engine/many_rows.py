"""Handle many values in few statements: slices for one IN (…), and rows by COPY on PostgreSQL, otherwise INSERT."""

import io
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa

from app.outbox.engine.db_errors import as_sqlalchemy
from app.outbox.policies import APPEND

_Value = TypeVar("_Value")
_MAX_VALUES = 1000  # of one IN (…): far below every database's limit


def chunks(values: Sequence[_Value], most: int = _MAX_VALUES) -> Iterator[Sequence[_Value]]:
    """Yield slices of at most so many values; without a number short enough for one IN (…)."""
    for start in range(0, len(values), most):
        yield values[start : start + most]


_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def insert(connection: sa.Connection, table: sa.Table, rows: Sequence[Sequence[Any]]) -> None:
    """Insert rows in the connection's transaction; each has a value for every column, in order, and none is NULL."""
    if connection.dialect.name == "postgresql" and len(rows) >= APPEND.min_copied_rows:
        _copy(connection, table, rows)
    elif rows:
        names = table.columns.keys()
        connection.execute(table.insert(), [dict(zip(names, row, strict=True)) for row in rows])


def _copy(connection: sa.Connection, table: sa.Table, rows: Sequence[Sequence[Any]]) -> None:
    quote = connection.dialect.identifier_preparer.quote
    names = ", ".join(quote(column.name) for column in table.columns)
    statement = f"COPY {quote(table.name)} ({names}) FROM STDIN"
    driver: Any = connection.connection.driver_connection
    text = io.BytesIO(driver.encoded("".join(map(_copy_line, rows))))  # a `StringIO` takes four bytes a character
    with as_sqlalchemy(driver, statement, connection.invalidate), driver.cursor() as cursor:
        cursor.copy_expert(statement, text, size=APPEND.copy_bytes)


def _copy_line(values: Sequence[object]) -> str:
    """Format values as a line of COPY. Most need no escaping, which a quick check shows."""
    line = "\t".join(map(str, values))
    if "\\" in line or "\n" in line or "\r" in line or line.count("\t") >= len(values):
        line = "\t".join([str(value).translate(_ESCAPES) for value in values])
    return line + "\n"
