"""Read the state of a target's partitions: what waits in each of them, and which worker has it.

What it reads is bounded, whatever waits: of each partition the events of as many sequence numbers as one search reads,
and `MAX_COUNTED_EVENTS` events and parked ones.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox import tables
from app.outbox.column_values import NEVER, REVOKED
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database
from app.outbox.engine.locks import own_cursors
from app.outbox.engine.many_rows import search_each
from app.outbox.log import arrivals
from app.outbox.log.arrivals import LogWindow
from app.outbox.targets import find_target

MAX_COUNTED_EVENTS = 1000  # in a partition, and as many parked ones
FREE, LEASED = "free", "leased"
LEASE_STATES = (FREE, LEASED, REVOKED)


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
        now = database_now(connection)
        cursors = connection.execute(
            sa.select(c.lease_token, c.leased_until, *arrivals.CURSOR)
            .select_from(arrivals.CURSORS)
            .where(own_cursors(target_id))
            .order_by(c.partition)
        ).all()
        windows = {
            cursor.partition: arrivals.unread(cursor)
            or LogWindow(target_id, cursor.partition, cursor.head, cursor.head)
            for cursor in cursors
        }
        counts = {row.place: row for row in _count(connection, windows.values())}
    return [_state(cursor, windows[cursor.partition], counts[cursor.partition], now) for cursor in cursors]


def _state(cursor: Any, window: LogWindow, counts: Any, now: int) -> PartitionState:
    lease, holder = lease_of(cursor.lease_token, cursor.leased_until, now)
    return PartitionState(
        partition=cursor.partition,
        position=window.after,
        pending=min(counts.pending, MAX_COUNTED_EVENTS),
        parked=min(counts.parked, MAX_COUNTED_EVENTS),
        parked_objects=min(counts.objects, MAX_COUNTED_EVENTS),
        more=max(counts.pending, counts.parked) > MAX_COUNTED_EVENTS or window.first_part != window,
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


def _count(connection: sa.Connection, windows: Iterable[LogWindow]) -> Iterator[Any]:
    """Yield what waits in each partition, counted up to one more than `MAX_COUNTED_EVENTS`."""

    def up_to_max(name: str, rows: str) -> str:
        return f"(SELECT COUNT(*) FROM (SELECT 1 {rows} LIMIT {MAX_COUNTED_EVENTS + 1:d}) AS {name}) AS {name}"  # noqa: S608 - numbers

    parked = "FROM parked WHERE target_id = {target_id} AND {column} = {partition}"
    counts = (
        up_to_max("pending", arrivals.IN_WINDOW),
        up_to_max("parked", parked),
        up_to_max("objects", f"{parked} AND not_before < {NEVER:d}"),
    )
    search = f"SELECT {{partition}} AS place, {', '.join(counts)}"
    return search_each(connection, search, (window.first_part for window in windows))
