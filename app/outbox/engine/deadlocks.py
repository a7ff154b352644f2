"""Repeat a transaction that the database has rolled back to end a deadlock.

The locks have one order (`engine.locks`), so it takes a migration, a cluster that commits on several nodes, or a
statement of somebody else. The server says that nothing of the transaction is left, and that it may be tried again.
"""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar, cast

import sqlalchemy as sa

from app.outbox.engine.database import Database, OpenTransaction
from app.outbox.policies import DATABASE

_T = TypeVar("_T")
_Method = TypeVar("_Method", bound=Callable[..., Any])
_POSTGRESQL = {"40001", "40P01"}  # a serialisation failure, as some clusters report it, and a deadlock
_MYSQL = 1213  # a deadlock; of Galera also a commit that was first on another node


def is_deadlock(error: BaseException) -> bool:
    """Return whether the database has rolled the whole transaction back, so that it may succeed when repeated."""
    cause: Any = error.orig if isinstance(error, sa.exc.DBAPIError) else None
    if hasattr(cause, "pgcode"):
        return cause.pgcode in _POSTGRESQL
    return bool(cause is not None and cause.args and cause.args[0] == _MYSQL)


def after_deadlocks(database: Database | OpenTransaction, work: Callable[[], _T]) -> _T:
    """Do work that is one transaction of this database, and repeat it unless it is part of a larger one."""
    left = 0 if isinstance(database, OpenTransaction) else DATABASE.max_deadlocks
    while True:
        try:
            return work()
        except sa.exc.DBAPIError as error:
            if not left or not is_deadlock(error):
                raise
            left -= 1


def repeated_after_deadlock(method: _Method) -> _Method:
    """Repeat a method that is one transaction of its object's `_database`, unless it is part of a larger one."""

    @wraps(method)
    def repeat(self: Any, *args: Any, **kwargs: Any) -> Any:
        return after_deadlocks(self._database, partial(method, self, *args, **kwargs))

    return cast(_Method, repeat)
