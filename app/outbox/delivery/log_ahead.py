"""Search for a target's events in the parts of the log that have some.

An event's targets are a text column of the event, so a search scans every event of other targets in between. It reads
the first part of a window, so that it is short for any backlog of a target.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, TypeVar

import sqlalchemy as sa

from app.outbox import log_head, tables
from app.outbox.column_values import WHOLE_LOG
from app.outbox.log.arrivals import LogWindow, unread_after

WINDOW_SEQS = 10_000  # that one search scans at most
_BATCH_SEARCHES = 64  # searches in one statement
_T = TypeVar("_T")


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
    ahead: dict[tuple[int, int], Ahead] = {}
    search = _planned_once if connection.dialect.name == "postgresql" else _planned_each
    for some in chunked(windows):
        union = search(some, most, connection.dialect.identifier_preparer.quote("partition"))
        for target_id, place, first, number in connection.exec_driver_sql(
            union, execution_options={"no_parameters": True}
        ):
            if number:
                ahead[target_id, place] = Ahead(first, number)
    return ahead


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
        if len(partitions) > _BATCH_SEARCHES:
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
    return bool(unread_after(connection, target_id, positions)) or _has_parked(connection, target_id, positions)


def _has_parked(connection: sa.Connection, target_id: int, partitions: Collection[int]) -> bool:
    """Return whether some of a target's partitions have parked events. It reads one index row for each without."""
    partition = connection.dialect.identifier_preparer.quote("partition")
    for some in chunked(partitions):
        # Literals, for the reason given above; LIMIT, so that the index is scanned in order.
        searches = (
            f"(SELECT 1 FROM parked WHERE target_id = {target_id:d} AND {partition} = {place:d} LIMIT 1) IS NOT NULL"  # noqa: S608 - numbers
            for place in some
        )
        found = connection.exec_driver_sql(f"SELECT {' OR '.join(searches)}", execution_options={"no_parameters": True})
        if found.scalar_one():
            return True
    return False


def _planned_once(windows: Sequence[LogWindow], most: int, partition: str) -> str:
    """Build one search that is run for each window: to plan one for each takes longer than to run it."""
    looks = ", ".join(
        f"({target_id:d}, {place:d}, {after:d}::bigint, {until:d}::bigint, '%,{target_id:d},%')"
        for target_id, place, after, until in windows
    )
    return (
        "SELECT look.target_id, look.place, ahead.*"  # noqa: S608 - numbers
        f" FROM (VALUES {looks}) AS look (target_id, place, after, until, pattern)"
        f" CROSS JOIN LATERAL (SELECT min(seq), count(*) FROM (SELECT seq FROM events WHERE {partition} = look.place"
        " AND seq > look.after AND seq <= look.until AND targets LIKE look.pattern"
        f" ORDER BY {partition}, seq LIMIT {most:d}) AS first_events) AS ahead"
    )


def _planned_each(windows: Sequence[LogWindow], most: int, partition: str) -> str:
    """Build a search for each window, in one statement.

    Seqs are literals, because MySQL and MariaDB start an index scan at a seq only if it is a constant: with the seq of
    a joined cursor they read the partition from its beginning, including delivered events.
    """
    return " UNION ALL ".join(
        f"SELECT {target_id:d}, {place:d}, min(seq), count(*) FROM (SELECT seq FROM events"  # noqa: S608 - numbers
        f" WHERE {partition} = {place:d} AND seq > {after:d} AND seq <= {until:d} AND targets LIKE '%,{target_id:d},%'"
        f" ORDER BY seq LIMIT {most:d}) AS window{number}"
        for number, (target_id, place, after, until) in enumerate(windows)
    )


def first_of_each(
    connection: sa.Connection, searches: Iterable[tuple[tuple[int, int], str]]
) -> Iterator[tuple[int, int, int]]:
    """Yield target, partition and number of each search that finds a number, many searches in one statement.

    A search is a target and a partition, and a SELECT of one number at most, whose values are literals for the reason
    given above.
    """
    for some in chunked(searches):
        union = " UNION ALL ".join(
            f"SELECT {target_id:d} AS target_id, {place:d} AS place, ({select}) AS found"
            for (target_id, place), select in some
        )
        for row in connection.exec_driver_sql(union, execution_options={"no_parameters": True}):
            if row.found is not None:
                yield row.target_id, row.place, row.found


def chunked(values: Iterable[_T]) -> Iterator[list[_T]]:
    """Yield the values in lists of as many as one statement has searches."""
    left = iter(values)
    while some := list(islice(left, _BATCH_SEARCHES)):
        yield some
