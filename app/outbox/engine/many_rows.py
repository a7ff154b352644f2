"""Handle many values in few statements: slices for one IN (…), searches of one kind, and rows by COPY on PostgreSQL."""

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

import sqlalchemy as sa

from app.outbox.engine.db_errors import as_sqlalchemy
from app.outbox.policies import APPEND

_Value = TypeVar("_Value")
_MAX_VALUES = 1000  # of one IN (…): far below every database's limit
MAX_SEARCHES = 64  # in one statement, or cases in one UPDATE
_MAX_PLANNED_ONCE = 500  # where one of them is planned


def chunks(values: Iterable[_Value], most: int = _MAX_VALUES) -> Iterator[list[_Value]]:
    """Yield the values in lists of at most so many; without a number short enough for one IN (…)."""
    left = iter(values)
    while some := list(islice(left, most)):
        yield some


def search_each(connection: sa.Connection, search: str, places: Iterable[Any]) -> Iterator[Any]:
    """Yield the rows of a search that is made at each of some places, many in one statement, in any order.

    A place is a named tuple of numbers, such as a target and a partition. `search` is a SELECT with its members in
    braces; `{column}` is the column `partition`, and `{pattern}` matches `events.targets` with the place's `target_id`.

    The numbers are literals: MySQL and MariaDB begin an index scan at a constant only, and with a joined row's number
    they read the partition from its beginning. PostgreSQL plans each search with constants by itself, which takes
    longer than to run it; there one search is planned, and run for each place.
    """
    is_planned_once = connection.dialect.name == "postgresql"
    for some in chunks(places, _MAX_PLANNED_ONCE if is_planned_once else MAX_SEARCHES):
        statement = (_planned_once if is_planned_once else _planned_each)(connection.dialect, search, some)
        # All at once: the caller may use the connection in between.
        yield from connection.exec_driver_sql(statement, execution_options={"no_parameters": True}).all()


def _planned_once(dialect: sa.Dialect, search: str, places: Sequence[Any]) -> str:
    names = (*places[0]._fields, "pattern")
    values = (
        f"({', '.join(f'{value:d}::bigint' for value in place)}, {_pattern(place)['pattern']})" for place in places
    )
    found = _filled(dialect, search, {name: f"place.{name}" for name in names})
    return (
        f"SELECT found.* FROM (VALUES {', '.join(values)}) AS place ({', '.join(names)})"  # noqa: S608 - numbers
        f" CROSS JOIN LATERAL ({found}) AS found"
    )


def _planned_each(dialect: sa.Dialect, search: str, places: Sequence[Any]) -> str:
    # SQLite takes no parentheses around a part of a UNION, and MySQL would make a table of a subquery.
    part = "SELECT * FROM ({})" if dialect.name == "sqlite" else "({})"
    searches = (
        _filled(dialect, search, {name: f"{value:d}" for name, value in place._asdict().items()} | _pattern(place))
        for place in places
    )
    return " UNION ALL ".join(map(part.format, searches))


def _filled(dialect: sa.Dialect, search: str, members: Mapping[str, str]) -> str:
    return search.format(column=dialect.identifier_preparer.quote("partition"), **members)


def _pattern(place: Any) -> dict[str, str]:
    return {"pattern": f"'%,{place.target_id:d},%'" if "target_id" in place._fields else "''"}


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
