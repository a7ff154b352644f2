"""Repeat a transaction that the database has rolled back to end a deadlock, or a long wait for a lock.

The locks have one order (`engine.locks`), so it takes a migration, a cluster that commits on several nodes, or a
statement of somebody else. The server says that nothing of the transaction is left, and that it may be tried again.

A wait for a lock is short, so that a client that is gone does not wait for long. One that is still there asks again:
a server whose disk stands still for some seconds keeps its locks for as long.
"""

import math
import time
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar, cast

import sqlalchemy as sa

from app.outbox.engine.database import Database, OpenTransaction
from app.outbox.policies import DATABASE

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
