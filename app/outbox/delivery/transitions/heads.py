"""Keep one head for each object that has parked events.

The invariant: the oldest of an object's parked events, the head, has a due time; each later one has `NEVER` and waits
behind the head. A transaction that parks events, removes them or changes their times must call `restore_heads` for
their objects before it ends, while it holds the lock of their partitions' cursors. `HeadRepair` is a safety net.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox import tables
from app.outbox.column_values import NEVER, WHOLE_LOG
from app.outbox.delivery.parked import ObjectHash
from app.outbox.engine.database import Database
from app.outbox.engine.locks import lock_cursors
from app.outbox.engine.many_rows import chunks

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


class HeadRepair:
    """Find objects whose parked events have no head or several, and repair them: a safety net.

    It should never find any. Those that it finds were left by a defect or by another version of the program.
    """

    def __init__(self, database: Database, *, chunk: int = 500, chunks_each_run: int = 50) -> None:
        self._database = database
        self._chunk = chunk
        self._chunks = chunks_each_run
        self._search: Iterator[tuple[Any, set[ObjectHash]]] | None = None

    def run(self) -> Counter[TargetId]:
        """Check the next part of the parked events, and return how many objects were repaired, by target.

        A run reads at most `chunk * chunks_each_run` rows, so with very many parked events a round takes several runs.
        Safe to run concurrently. Raises `DatabaseUnavailable`; the next run then begins a new round.
        """
        repaired: Counter[TargetId] = Counter()
        if self._search is None:
            self._search = self._broken()
        for _ in range(self._chunks):
            partition, objects = next(self._search, (None, set()))
            if partition is None:
                self._search = None
                break
            if objects and (count := self._repair(partition, objects)):
                repaired[TargetId(partition.type, partition.name)] += count
        return repaired

    def _broken(self) -> Iterator[tuple[Any, set[ObjectHash]]]:
        """Yield each partition that has parked events, chunk by chunk, with the objects that break the invariant."""
        c, t = tables.cursors.c, tables.targets.c
        parked = sa.exists().where(_P.target_id == c.target_id, _P.partition == c.partition).correlate(tables.cursors)
        with self._database.reading() as connection:
            partitions = connection.execute(
                sa.select(t.id, t.type, t.name, c.partition)
                .join_from(tables.cursors, tables.targets, c.target_id == t.id)
                .where(c.replay_id == WHOLE_LOG, parked)
                .order_by(t.id, c.partition)
            ).all()
        for partition in partitions:
            query = (
                sa.select(_P.key_hash, _P.not_before)
                .where(_P.target_id == partition.id, _P.partition == partition.partition)
                .order_by(_P.key_hash, _P.seq)
                .limit(self._chunk)
            )
            after: sa.ColumnElement[bool] = sa.true()
            while True:
                with self._database.reading() as connection:
                    rows = connection.execute(query.where(after)).all()
                yield partition, {(partition.partition, key_hash) for key_hash in _without_one_head(rows)}
                if len(rows) < self._chunk:
                    break
                last = rows[-1].key_hash
                # An object with more events than a chunk must not stop the search; its head was already checked.
                after = _P.key_hash > last if rows[0].key_hash == last else _P.key_hash >= last

    def _repair(self, partition: Any, objects: set[ObjectHash]) -> int:
        with self._database.writing() as connection:
            lock_cursors(connection, partition.id, [partition.partition])  # as a settlement does
            return restore_heads(connection, partition.id, objects)


def _without_one_head(rows: Iterable[Any]) -> Iterator[int]:
    """Yield the key hashes of objects that break the invariant; `rows` are sorted by key hash and seq."""
    for key_hash, group in groupby(rows, key=lambda row: row.key_hash):
        head, *others = (row.not_before for row in group)
        if head == NEVER or any(not_before != NEVER for not_before in others):
            yield key_hash
