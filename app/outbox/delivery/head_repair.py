"""Find objects whose parked events have no head or several (`transitions.heads`), and repair them: a safety net."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox import tables
from app.outbox.delivery.parked import ObjectHash
from app.outbox.delivery.transitions.heads import restore_heads
from app.outbox.engine.database import Database
from app.outbox.markers import NEVER, WHOLE_LOG

_P = tables.parked.c


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
        c = tables.cursors.c
        cursor = sa.select(c.position).where(
            c.target_id == partition.id, c.partition == partition.partition, c.replay_id == WHOLE_LOG
        )
        with self._database.writing() as connection:
            # Lock the cursor as a settlement does: later reads are then exact until the commit.
            connection.execute(cursor.with_for_update()).all()
            return restore_heads(connection, partition.id, objects)


def _without_one_head(rows: Iterable[Any]) -> Iterator[int]:
    """Yield the key hashes of objects that break the invariant; `rows` are sorted by key hash and seq."""
    for key_hash, group in groupby(rows, key=lambda row: row.key_hash):
        head, *others = (row.not_before for row in group)
        if head == NEVER or any(not_before != NEVER for not_before in others):
            yield key_hash
