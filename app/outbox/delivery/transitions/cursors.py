"""Change cursors other than by a worker's settlement: begin, move, revoke and remove them."""

from collections.abc import Collection, Mapping

import sqlalchemy as sa

from app.outbox import tables
from app.outbox.column_values import REVOKED
from app.outbox.engine.locks import own_cursors
from app.outbox.log_head import LogHead

_C = tables.cursors.c


def begin(connection: sa.Connection, target_id: int, head: LogHead) -> None:
    """Have every event that is recorded for a new target from now on delivered. The caller has locked the head."""
    position = {"target_id": target_id, "position": head.last_seq}
    connection.execute(
        tables.cursors.insert(), [position | {"partition": partition} for partition in range(head.partitions)]
    )


def begin_replay(
    connection: sa.Connection, target_id: int, replay_id: int, ranges: Mapping[int, tuple[int, int]]
) -> None:
    """Have the events of a part of the log delivered again: in each partition those after the first seq to the last.

    They count as recorded once more when the replay reaches them. The caller has locked the log's tail and the target's
    cursors.
    """
    rows = [
        {"target_id": target_id, "partition": partition, "replay_id": replay_id}
        | {"position": after, "begins_after": after, "until": until}
        for partition, (after, until) in ranges.items()
    ]
    if rows:
        connection.execute(tables.cursors.insert(), rows)


def end_replay(connection: sa.Connection, target_id: int, replay_id: int, partition: int) -> None:
    """Remove a replay's cursor at any position, and add its counts to the log's own cursor and to the replay.

    The caller has locked the log's own cursor.
    """
    r = tables.replays.c
    mine = (_C.target_id == target_id, _C.partition == partition, _C.replay_id == replay_id)
    row = connection.execute(sa.select(_C.replayed, (_C.position - _C.begins_after).label("passed")).where(*mine)).one()
    connection.execute(tables.cursors.delete().where(*mine))
    connection.execute(
        tables.cursors.update().where(own_cursors(target_id, [partition])).values(replayed=_C.replayed + row.replayed)
    )
    connection.execute(
        tables.replays.update()
        .where(r.id == replay_id)
        .values(replayed=r.replayed + row.replayed, passed=r.passed + row.passed)
    )


def revoke(connection: sa.Connection, target_id: int, partitions: Collection[int] | None = None) -> None:
    """Take the leases of workers that do not know of a change to these partitions (None: to all of the target).

    Such a worker settles nothing more, and nobody claims its partitions until its lease expires.
    """
    leased = _C.lease_token != ""
    connection.execute(
        tables.cursors.update().where(own_cursors(target_id, partitions), leased).values(lease_token=REVOKED)
    )


def remove(connection: sa.Connection, target_id: int) -> None:
    """Remove a target's cursors, arrivals, parked events and dead letters. The caller has locked the cursors."""
    # Cursors first: a settling worker holds their lock and may be about to park events.
    for table in (tables.cursors, tables.arrivals, tables.parked, tables.dead_letters):
        connection.execute(table.delete().where(table.c.target_id == target_id))
