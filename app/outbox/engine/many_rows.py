"""Lock rows in one order, repeat what was rolled back, and handle many rows in few statements.

The order is `log_head` or `log_tail`, then cursors (by target and partition, ascending), then parked events and dead
letters, then targets: without the lock of `log_head`, the row of one target only. On MySQL a row that refers to a
target locks the target's row, too. Lock first and read afterwards: values read before the lock may be out of date.

So it takes a migration, a cluster that commits on several nodes, or a statement of somebody else for a deadlock. The
server ends it by rolling a transaction back, and says that nothing of it is left, and that it may be tried again.

A wait for a lock is short, so that a client that is gone does not wait for long. One that is still there asks again:
a server whose disk stands still for some seconds keeps its locks for as long.

Few statements means slices for one IN (…), many searches of one kind at once, and rows by COPY on PostgreSQL.
"""

import io
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial, wraps
from itertools import islice
from typing import Any, TypeVar, cast

import sqlalchemy as sa

from app.outbox import tables
from app.outbox.column_values import WHOLE_LOG
from app.outbox.engine.database import Database, OpenTransaction
from app.outbox.engine.db_errors import as_sqlalchemy
from app.outbox.policies import APPEND, DATABASE


def lock_tail(connection: sa.Connection) -> None:
    """Prevent other transactions from removing events from the log and from beginning a replay, until this one ends.

    Events are recorded under another lock: intake never waits for the holder of this one.
    """
    connection.execute(sa.select(tables.log_tail.c.id).with_for_update()).all()


def try_lock_tail(connection: sa.Connection) -> bool:
    """Lock like `lock_tail`, but return False at once if another transaction has the lock.

    On SQLite the transaction has it already: it excludes every other one that writes.
    """
    lock = sa.select(tables.log_tail.c.id).with_for_update(skip_locked=True)
    return bool(connection.execute(lock).all())


def own_cursors(target_id: int, partitions: Collection[int] | None = None) -> sa.ColumnElement[bool]:
    """Return the condition for a target's own cursors of the log, in these partitions (None: in all)."""
    c = tables.cursors.c
    mine = sa.and_(c.target_id == target_id, c.replay_id == WHOLE_LOG)
    return mine if partitions is None else sa.and_(mine, c.partition.in_(sorted(partitions)))


def lock_cursors(connection: sa.Connection, target_id: int, partitions: Collection[int] | None = None) -> Sequence[Any]:
    """Prevent workers from settling in a target's partitions (None: in all) until the transaction ends.

    Returns the partition and position of each cursor, sorted by partition; no rows if the target was removed.
    """
    c = tables.cursors.c
    query = sa.select(c.partition, c.position).where(own_cursors(target_id, partitions))
    return connection.execute(query.order_by(c.partition).with_for_update()).all()


_T = TypeVar("_T")
_Method = TypeVar("_Method", bound=Callable[..., Any])
# A serialisation failure, as some clusters report it, a deadlock, and a lock that was not to be had in time.
_POSTGRESQL = {"40001", "40P01", "55P03"}
# A deadlock, of Galera also a commit that was first on another node, and a lock that was not to be had in time.
_MYSQL = {1213, 1205}
_PAUSE = 0.02  # seconds, in which the other transaction gets the locks that this one had


def _may_be_repeated(error: BaseException) -> bool:
    """Return whether nothing of the transaction is left once it is rolled back, and it may succeed when repeated."""
    cause: Any = error.orig if isinstance(error, sa.exc.DBAPIError) else None
    if hasattr(cause, "pgcode"):
        return cause.pgcode in _POSTGRESQL
    return bool(cause is not None and cause.args and cause.args[0] in _MYSQL)


def after_deadlocks(database: Database | OpenTransaction, work: Callable[[], _T], seconds: float | None = None) -> _T:
    """Do work that is one transaction of this database, and repeat it unless it is part of a larger one.

    With `seconds`, it is repeated for so long, however often.
    """
    left: float = 0 if isinstance(database, OpenTransaction) else DATABASE.max_deadlocks
    until = time.monotonic() + DATABASE.repeat_seconds
    if seconds is not None:
        left, until = math.inf, time.monotonic() + seconds
    while True:
        try:
            return work()
        except sa.exc.DBAPIError as error:
            if not left or time.monotonic() > until or not _may_be_repeated(error):
                raise
            left -= 1
            time.sleep(_PAUSE)


def write_alone(database: Database, write: Callable[[sa.Connection], object]) -> None:
    """Make a transaction of what `write` does with a connection, and repeat it after a deadlock."""

    def transaction() -> None:
        with database.writing() as connection:
            write(connection)

    after_deadlocks(database, transaction)


def repeated_after_deadlock(method: _Method) -> _Method:
    """Repeat a method or a function, unless it is part of a larger transaction.

    It is one transaction of its object's `_database`, or of the database that is its first argument, or several of
    which those before the last may be made twice.
    """

    @wraps(method)
    def repeat(self: Any, *args: Any, **kwargs: Any) -> Any:
        database = self if isinstance(self, (Database, OpenTransaction)) else self._database
        return after_deadlocks(database, partial(method, self, *args, **kwargs))

    return cast(_Method, repeat)


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
