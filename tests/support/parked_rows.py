"""Read parked rows as they are in the database, and check the invariant that every object of theirs must keep."""

from itertools import groupby
from typing import NamedTuple

import sqlalchemy as sa

from app.outbox import tables
from app.outbox.column_values import NEVER
from app.outbox.engine.database import Database


class ParkedRow(NamedTuple):
    """One row of `parked`."""

    target_id: int
    partition: int
    key_hash: int
    seq: int
    not_before: int
    attempts: int


def parked_rows(database: Database) -> list[ParkedRow]:
    """Every parked row, by target and object, oldest event first."""
    p = tables.parked.c
    query = sa.select(p.target_id, p.partition, p.key_hash, p.seq, p.not_before, p.attempts)
    with database.reading() as connection:
        rows = connection.execute(query.order_by(p.target_id, p.partition, p.key_hash, p.seq))
        return [ParkedRow(*row) for row in rows]


def due_times(database: Database) -> dict[tuple[int, int], int]:
    """When each object that has parked events is due, by partition and key hash; for an outbox with one target.

    Fails unless the object's oldest parked event, and no other, has a due time.
    """
    due = {}
    for (_, partition, key_hash), group in groupby(parked_rows(database), key=lambda row: row[:3]):
        head, *others = group
        assert head.not_before < NEVER, f"no parked event of this object is ever due: {[head, *others]}"
        assert all(row.not_before == NEVER for row in others), f"two events of an object are due: {[head, *others]}"
        due[partition, key_hash] = head.not_before
    return due


def assert_each_object_has_one_head(database: Database) -> None:
    """The oldest parked event of each object is due some day, and each later one waits behind it."""
    due_times(database)
