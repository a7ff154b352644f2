"""Search for a target's events in the parts of the log that have some.

An event's targets are a text column of the event, so a search scans every event of other targets in between. It reads
the first part of a window, so that it is short for any backlog of a target.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa

from app.outbox import log_head, tables
from app.outbox.column_values import WHOLE_LOG
from app.outbox.delivery.parked import PartitionOf, with_parked
from app.outbox.engine.many_rows import search_each
from app.outbox.log.arrivals import LogWindow, unread_after

WINDOW_SEQS = 10_000  # that one search scans at most
_MAX_SEARCHES = 64  # for each kind of work, in the statement that reads what was claimed


def first_part(window: LogWindow) -> LogWindow:
    """Return the part of a window that one search reads."""
    return window._replace(until=min(window.until, window.after + WINDOW_SEQS))


def is_for(target_id: sa.ColumnElement[int] | int) -> sa.ColumnElement[bool]:
    """Return the condition that an event of the log goes to a target."""
    if isinstance(target_id, int):
        return tables.events.c.targets.like(f"%,{target_id},%")
    return tables.events.c.targets.like("%," + sa.cast(target_id, sa.String(20)) + ",%")


def is_discarded_for(target_id: int | None) -> sa.ColumnElement[bool]:
    """Return the condition that an event was discarded for a target, or for any."""
    return tables.events.c.targets.like("%,-%" if target_id is None else f"%,-{target_id},%")


class Ahead(NamedTuple):
    """A target's events in a window of the log: the seq of the first, and their number, counted up to a limit."""

    first: int
    number: int


def events_ahead(
    connection: sa.Connection, windows: Iterable[LogWindow], most: int = 1
) -> dict[tuple[int, int], Ahead]:
    """Return what each search finds, counted up to `most`, by target and partition; only for searches with events."""
    mine = "{column} = {partition} AND seq > {after} AND seq <= {until} AND targets LIKE {pattern}"
    first = f"SELECT seq FROM events WHERE {mine} ORDER BY {{column}}, seq LIMIT {most:d}"  # noqa: S608 - numbers
    search = f"SELECT {{target_id}}, {{partition}}, MIN(seq), COUNT(*) FROM ({first}) AS first_events"  # noqa: S608
    rows = search_each(connection, search, windows)
    return {(target_id, partition): Ahead(first, number) for target_id, partition, first, number in rows if number}


@dataclass(frozen=True, slots=True)
class Claimed:
    """The positions of claimed partitions, the log's state, and which kinds of work the partitions have."""

    positions: Mapping[int, int]
    log: log_head.LogState
    has_replays: bool
    has_parked: bool
    has_redeliveries: bool


def read_claimed(connection: sa.Connection, target_id: int, partitions: Collection[int], token: str) -> Claimed | None:
    """Return what those of a target's partitions have whose lease has this token; None if it has none of them.

    One statement, which reads a few index rows for each. Of many partitions it says without looking that they have
    everything.
    """
    partition = connection.dialect.identifier_preparer.quote("partition")

    def has(table: str, condition: str = "") -> str:
        if len(partitions) > _MAX_SEARCHES:
            return "1 = 1"
        # Literals, because with a joined cursor MySQL reads every row of the partition, also with EXISTS or LIMIT.
        searches = (
            f"(SELECT 1 FROM {table} WHERE target_id = {target_id:d} AND {partition} = {place:d}{condition} LIMIT 1)"  # noqa: S608 - numbers
            for place in partitions
        )
        return " OR ".join(f"{search} IS NOT NULL" for search in searches)

    mark = "?" if connection.dialect.paramstyle == "qmark" else "%s"
    replays = has("cursors", f" AND replay_id > {WHOLE_LOG:d}")
    rows = connection.exec_driver_sql(
        f"SELECT mine.{partition}, mine.position, {log_head.state_columns(connection.dialect.name)},"  # noqa: S608
        f" {replays}, {has('parked')}, {has('redeliveries')} FROM cursors AS mine, log_head"
        f" WHERE mine.target_id = {target_id:d} AND mine.replay_id = {WHOLE_LOG:d} AND mine.lease_token = {mark}",
        (token,),
    ).all()
    if not rows:
        return None
    _, _, last_seq, epoch, is_current, *has_kinds = rows[0]
    state = log_head.LogState(last_seq, epoch, bool(is_current))
    return Claimed({row[0]: row[1] for row in rows}, state, *map(bool, has_kinds))


def has_work(connection: sa.Connection, target_id: int, positions: Mapping[int, int]) -> bool:
    """Return whether partitions have events of a target after these positions (by partition), or parked ones."""
    partitions = (PartitionOf(target_id, partition) for partition in positions)
    return bool(unread_after(connection, target_id, positions)) or any(
        True for _ in with_parked(connection, partitions)
    )
