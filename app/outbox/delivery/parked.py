"""Find parked events: when the first of a partition is due, an object's oldest ones, and those that were refused."""

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa

from app.outbox import tables
from app.outbox.engine.many_rows import search_each
from app.outbox.policies import FUTURE_TIMES

ObjectHash = tuple[int, int]  # partition and key hash


class PartitionOf(NamedTuple):
    """A partition of a target."""

    target_id: int
    partition: int


class _Place(NamedTuple):
    """An object of a target."""

    target_id: int
    partition: int
    key_hash: int


_MINE = "FROM parked WHERE target_id = {target_id} AND {column} = {partition}"
_FIRST_DUE = f"SELECT {{target_id}}, {{partition}}, MIN(not_before) {_MINE}"
_FIRST = f"SELECT {{target_id}}, {{partition}}, MIN(seq) {_MINE}"
_ANY = f"SELECT {{target_id}}, {{partition}} {_MINE} LIMIT 1"


def first_due(connection: sa.Connection, partitions: Iterable[PartitionOf]) -> dict[tuple[int, int], int]:
    """Return when the first parked event of each partition is due (ms), if it has any; reads an index row for each."""
    rows = search_each(connection, _FIRST_DUE, partitions)
    return {(target_id, partition): due for target_id, partition, due in rows if due is not None}


def first_parked(connection: sa.Connection, partitions: Iterable[PartitionOf]) -> dict[tuple[int, int], int]:
    """Return the seq of the first parked event of each partition, if it has any; reads an index row for each."""
    rows = search_each(connection, _FIRST, partitions)
    return {(target_id, partition): seq for target_id, partition, seq in rows if seq is not None}


def with_parked(connection: sa.Connection, partitions: Iterable[PartitionOf]) -> Iterator[PartitionOf]:
    """Yield those of the partitions that have parked events; reads an index row for each."""
    yield from (PartitionOf(*row) for row in search_each(connection, _ANY, partitions))


def oldest_parked(
    connection: sa.Connection, target_id: int, objects: Sequence[ObjectHash], most: int
) -> list[tuple[int, int]]:
    """Return partition and seq of the `most` oldest parked events of each object, in no particular order.

    Reads that many index rows for each object, however many events wait behind them.
    """
    # A range and an order that only one index has: PostgreSQL would read all events before the object's by another one.
    is_range = connection.dialect.name == "postgresql"
    of_object = "key_hash BETWEEN {key_hash} AND {key_hash}" if is_range else "key_hash = {key_hash}"
    search = f"SELECT {{partition}}, seq {_MINE} AND {of_object} ORDER BY key_hash, seq LIMIT {most:d}"
    places = (_Place(target_id, partition, key_hash) for partition, key_hash in objects)
    return [(partition, seq) for partition, seq in search_each(connection, search, places)]


@dataclass(frozen=True, slots=True)
class Refusals:
    """A target's recorded refusals: when it last confirmed a delivery, and which parked events it has refused since.

    `partitions` are the partitions of those events. `of_others` is true if there are more of them than those given.
    """

    delivered_at: int
    partitions: frozenset[int] = frozenset()
    of_others: bool = False


def read_refusals(
    connection: sa.Connection, target_id: int, now: int, known: Set[tuple[int, int]] = frozenset()
) -> Refusals:
    """Return when a target last confirmed a delivery, in any partition, and its refusals since.

    `of_others` of the result is true if some refused events, by partition and seq, are not in `known`. A delivery after
    `now` (ms) was confirmed before the clock was set back. It does not count: each refusal would seem to be older, and
    an outage would cost attempts.
    """
    c, p = tables.cursors.c, tables.parked.c
    confirmed = sa.select(sa.func.max(c.delivered_at)).where(
        c.target_id == target_id, c.delivered_at <= now + FUTURE_TIMES.tolerance_ms
    )
    delivered_at = int(connection.execute(confirmed).scalar_one() or 0)
    query = sa.select(p.partition, p.seq).where(p.target_id == target_id, p.refused_at > delivered_at)
    refused = {(row.partition, row.seq) for row in connection.execute(query)}
    return Refusals(delivered_at, frozenset(partition for partition, _ in refused), not refused <= known)
