"""Lock rows in one order, so that operations wait for each other without deadlocks, and repeat what was rolled back.

The order is `log_head` or `log_tail`, then cursors (by target and partition, ascending), then parked events and dead
letters, then targets: without the lock of `log_head`, the row of one target only. On MySQL a row that refers to a
target locks the target's row, too. Lock first and read afterwards: values read before the lock may be out of date.

So it takes a migration, a cluster that commits on several nodes, or a statement of somebody else for a deadlock. The
server ends it by rolling a transaction back, and says that nothing of it is left, and that it may be tried again.

A wait for a lock is short, so that a client that is gone does not wait for long. One that is still there asks again:
a server whose disk stands still for some seconds keeps its locks for as long.
"""

import math
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial, wraps
from typing import Any, TypeVar, cast

import sqlalchemy as sa

from app.outbox import tables
from app.outbox.column_values import WHOLE_LOG
from app.outbox.engine.database import Database, OpenTransaction
from app.outbox.policies import DATABASE


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
