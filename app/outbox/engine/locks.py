"""Lock rows in one order, so that operations wait for each other without deadlocks.

The order is `log_head` or `log_tail`, then cursors (by target and partition, ascending), then parked events and dead
letters, then targets: without the lock of `log_head`, the row of one target only. On MySQL a row that refers to a
target locks the target's row, too. Lock first and read afterwards: values read before the lock may be out of date.
"""

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from app.outbox import tables
from app.outbox.markers import WHOLE_LOG


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


def lock_cursors(connection: sa.Connection, target_id: int, partitions: Collection[int] | None = None) -> Sequence[Any]:
    """Prevent workers from settling in a target's partitions (None: in all) until the transaction ends.

    Returns the partition and position of each cursor, sorted by partition; no rows if the target was removed.
    """
    c = tables.cursors.c
    query = sa.select(c.partition, c.position).where(c.target_id == target_id, c.replay_id == WHOLE_LOG)
    if partitions is not None:
        query = query.where(c.partition.in_(sorted(partitions)))
    return connection.execute(query.order_by(c.partition).with_for_update()).all()
