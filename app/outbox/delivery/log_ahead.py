"""Look for a target's events ahead of its cursors, in windows of the log.

Which targets an event goes to is a text in the event, so a look passes over every event of other targets that lies
between. A window bounds how many: whatever a target's backlog looks like, a look reads at most the events of so many
sequence numbers.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import sqlalchemy as sa

from app.outbox import tables

WINDOW = 10_000  # sequence numbers that one look passes over at most
_AT_ONCE = 64  # looks in one statement


class Look(NamedTuple):
    """A look at the events of a partition after one seq and up to another, for those of a target."""

    target_id: int
    partition: int
    after: int
    until: int


def goes_to(target_id: sa.ColumnElement[int] | int) -> sa.ColumnElement[bool]:
    """Whether an event of the log goes to a target."""
    if isinstance(target_id, int):
        return tables.events.c.targets.like(f"%,{target_id},%")
    return tables.events.c.targets.like("%," + sa.cast(target_id, sa.String(20)) + ",%")


def events_ahead(connection: sa.Connection, looks: Iterable[Look], most: int = 1) -> dict[tuple[int, int], list[int]]:
    """The first `most` seqs that each look finds, in order, by target and partition; nothing for those without any."""
    found: dict[tuple[int, int], list[int]] = {}
    for some in _chunks(looks):
        # Written out, as MySQL and MariaDB read an index from a seq on only where the seq is a constant: with that of a
        # joined cursor they read the partition from its beginning, delivered events and all.
        union = _union(some, most, connection.dialect.identifier_preparer.quote("partition"))
        for row in connection.exec_driver_sql(union, execution_options={"no_parameters": True}):
            found.setdefault((row.target_id, row.place), []).append(row.seq)
    for seqs in found.values():
        seqs.sort()
    return found


def _union(looks: Sequence[Look], most: int, partition: str) -> str:
    return " UNION ALL ".join(
        f"SELECT {target_id:d} AS target_id, {place:d} AS place, seq FROM (SELECT seq FROM events"  # noqa: S608 - numbers
        f" WHERE {partition} = {place:d} AND seq > {after:d} AND seq <= {until:d} AND targets LIKE '%,{target_id:d},%'"
        f" ORDER BY seq LIMIT {most:d}) AS look{number}"
        for number, (target_id, place, after, until) in enumerate(looks)
    )


def _chunks(looks: Iterable[Look]) -> Iterator[list[Look]]:
    left = iter(looks)
    while some := list(islice(left, _AT_ONCE)):
        yield some
