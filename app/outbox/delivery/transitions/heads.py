"""Keep one head for each object that has parked events.

The invariant: the oldest of an object's parked events, the head, has a due time; each later one has `NEVER` and waits
behind the head. A transaction that parks events, removes them or changes their times must call `restore_heads` for
their objects before it ends, while it holds the lock of their partitions' cursors.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from app.outbox import tables
from app.outbox.delivery.parked import ObjectHash
from app.outbox.engine.many_rows import chunks
from app.outbox.markers import NEVER

_P = tables.parked.c
_OTHER = tables.parked.alias("other")
_OBJECT = sa.and_(
    _P.target_id == sa.bindparam("target"),
    _P.partition == sa.bindparam("partition"),
    _P.key_hash == sa.bindparam("hash"),
)
# Built once. Each finds its rows by an index, independent of the number of events that wait behind a head.
_DUE = sa.select(
    _P.key_hash,
    _P.seq,
    _P.not_before,
    sa.exists()
    .where(_OTHER.c.target_id == _P.target_id, _OTHER.c.partition == _P.partition)
    .where(_OTHER.c.key_hash == _P.key_hash, _OTHER.c.seq < _P.seq)
    .label("follows"),
).where(
    _P.target_id == sa.bindparam("target"),
    _P.partition == sa.bindparam("partition"),
    _P.key_hash.in_(sa.bindparam("hashes", expanding=True)),
    _P.not_before < NEVER,
)
_OLDEST = sa.select(sa.func.min(_P.seq)).where(_OBJECT)
_SET_DUE = (
    tables.parked.update()
    .where(_P.target_id == sa.bindparam("target"), _P.partition == sa.bindparam("of_partition"))
    .where(_P.seq == sa.bindparam("number"))
    .values(not_before=sa.bindparam("due"))
)


def restore_heads(connection: sa.Connection, target_id: int, objects: Iterable[ObjectHash]) -> int:
    """Make the oldest parked event of each object its head, and return how many objects needed a change.

    A head that has a due time keeps it. An older event that was parked in front of the head takes over the head's
    time, so that it does not bypass the back-off; the former head keeps its attempts. Where no event of the object
    has a time, its oldest is due at once. Objects without parked events are left alone.

    The connection is in a transaction that holds the lock of the objects' cursors.
    """
    by_partition: dict[int, list[int]] = defaultdict(list)
    for partition, key_hash in sorted(set(objects)):
        by_partition[partition].append(key_hash)
    changed = 0
    for partition, hashes in by_partition.items():
        for some in chunks(hashes):
            due: dict[int, list[Any]] = defaultdict(list)
            for row in connection.execute(_DUE, {"target": target_id, "partition": partition, "hashes": some}):
                due[row.key_hash].append(row)
            for key_hash in some:
                rows = due[key_hash]
                if len(rows) != 1 or rows[0].follows:
                    changed += _restore(connection, target_id, (partition, key_hash), rows)
    return changed


def _restore(connection: sa.Connection, target_id: int, key: ObjectHash, due: Sequence[Any]) -> bool:
    partition, key_hash = key
    oldest = connection.execute(_OLDEST, {"target": target_id, "partition": partition, "hash": key_hash}).scalar_one()
    if oldest is None:
        return False
    own = next((row.not_before for row in due if row.seq == oldest), None)
    times = {row.seq: NEVER for row in due}
    times[oldest] = min((row.not_before for row in due), default=0) if own is None else own
    connection.execute(
        _SET_DUE,
        [{"target": target_id, "of_partition": partition, "number": seq, "due": time} for seq, time in times.items()],
    )
    return True
