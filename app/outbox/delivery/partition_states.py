"""Read the state of a target's partitions: what waits in each of them, and which worker has it.

What it reads is bounded, whatever waits: of each partition the events of `WINDOW_SEQS` sequence numbers after its
cursor, and `MAX_COUNTED_EVENTS` events and parked ones.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox import log_head, tables
from app.outbox.delivery.log_ahead import WINDOW_SEQS
from app.outbox.engine.chunks import chunks
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database
from app.outbox.markers import NEVER, REVOKED, WHOLE_LOG
from app.outbox.targets import find_target

MAX_COUNTED_EVENTS = 1000  # in a partition, and as many parked ones
FREE, LEASED = "free", "leased"
LEASE_STATES = (FREE, LEASED, REVOKED)
_BATCH_PARTITIONS = 64  # partitions in one statement


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition of a target.

    `pending` and `parked` are counted up to `MAX_COUNTED_EVENTS`; `more` says that there may be more of either. One
    `parked` event of each object is retried, so `parked_objects` is the number of objects. `lease` is one of
    `LEASE_STATES`; a leased partition has a `holder`, `HOST:PID`, until `leased_until` (ms), which it renews while it
    works.
    """

    partition: int
    position: int
    pending: int
    parked: int
    parked_objects: int
    more: bool
    lease: str
    holder: str
    leased_until: int


def read_partitions(database: Database, target: TargetId) -> list[PartitionState]:
    """Return the partitions of a target in the order of their numbers. Raises `UnknownTarget`."""
    c = tables.cursors.c
    with database.snapshot() as connection:
        target_id = find_target(connection, target).row_id
        head, now = log_head.read(connection).last_seq, database_now(connection)
        cursors = connection.execute(
            sa.select(c.partition, c.position, c.lease_token, c.leased_until)
            .where(c.target_id == target_id, c.replay_id == WHOLE_LOG)
            .order_by(c.partition)
        ).all()
        counts = {row.place: row for row in _count(connection, target_id, cursors)}
    return [_state(cursor, counts[cursor.partition], head, now) for cursor in cursors]


def _state(cursor: Any, counts: Any, head: int, now: int) -> PartitionState:
    lease, holder = lease_of(cursor.lease_token, cursor.leased_until, now)
    return PartitionState(
        partition=cursor.partition,
        position=cursor.position,
        pending=min(counts.pending, MAX_COUNTED_EVENTS),
        parked=min(counts.parked, MAX_COUNTED_EVENTS),
        parked_objects=min(counts.objects, MAX_COUNTED_EVENTS),
        more=max(counts.pending, counts.parked) > MAX_COUNTED_EVENTS or cursor.position + WINDOW_SEQS < head,
        lease=lease,
        holder=holder,
        leased_until=cursor.leased_until if lease != FREE else 0,
    )


def lease_of(token: str, leased_until: int, now: int) -> tuple[str, str]:
    """Return the state of a lease at `now`, and its holder, "" if it has none."""
    if not token or leased_until < now:
        return FREE, ""
    if token == REVOKED:
        return REVOKED, ""
    return LEASED, token.rpartition(":")[0]


def _count(connection: sa.Connection, target_id: int, cursors: Sequence[Any]) -> Iterator[Any]:
    """Yield what waits in each partition, counted up to one more than `MAX_COUNTED_EVENTS`."""
    partition = connection.dialect.identifier_preparer.quote("partition")

    def count_up_to_max(name: str, table: str, place: int, condition: str) -> str:
        # Literals, for the reason given in `log_ahead`.
        return (
            f"(SELECT count(*) FROM (SELECT 1 FROM {table} WHERE {partition} = {place:d} AND {condition}"  # noqa: S608 - numbers
            f" LIMIT {MAX_COUNTED_EVENTS + 1:d}) AS {name}{place:d}) AS {name}"
        )

    for some in chunks(cursors, _BATCH_PARTITIONS):
        union = " UNION ALL ".join(
            ", ".join(
                (
                    f"SELECT {cursor.partition:d} AS place",
                    count_up_to_max(
                        "pending",
                        "events",
                        cursor.partition,
                        f"seq > {cursor.position:d} AND seq <= {cursor.position + WINDOW_SEQS:d}"
                        f" AND targets LIKE '%,{target_id:d},%'",
                    ),
                    count_up_to_max("parked", "parked", cursor.partition, f"target_id = {target_id:d}"),
                    count_up_to_max(
                        "objects", "parked", cursor.partition, f"target_id = {target_id:d} AND not_before < {NEVER:d}"
                    ),
                )
            )
            for cursor in some
        )
        yield from connection.exec_driver_sql(union, execution_options={"no_parameters": True})
