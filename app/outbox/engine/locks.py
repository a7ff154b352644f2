"""Lock rows in one order, so that operations wait for each other and never in a circle.

The order is `log_head` or `log_tail`, then cursors (by target and partition, ascending), then parked events and dead
letters, then targets. Lock first and read afterwards: what was read before the lock may be out of date.
"""

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from app.outbox import tables
from app.outbox.markers import WHOLE_LOG


def lock_tail(connection: sa.Connection) -> None:
    """Keep others from removing events of the log, and from beginning a replay, until the transaction ends.

    It is not the lock under which events are recorded: intake never waits for the holder.
    """
    connection.execute(sa.select(tables.log_tail.c.id).with_for_update()).all()


def lock_cursors(connection: sa.Connection, target_id: int, partitions: Collection[int] | None = None) -> Sequence[Any]:
    """Keep workers from settling in a target's partitions (None: in all) until the transaction ends.

    Returns partition and position of each, partitions ascending; nothing where the target was removed.
    """
    c = tables.cursors.c
    query = sa.select(c.partition, c.position).where(c.target_id == target_id, c.replay_id == WHOLE_LOG)
    if partitions is not None:
        query = query.where(c.partition.in_(sorted(partitions)))
    return connection.execute(query.order_by(c.partition).with_for_update()).all()
