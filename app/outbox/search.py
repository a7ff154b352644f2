"""Search the log, newest events first, in bounded steps.

The log has no index by time, bucket or name: each would make recording events slower. A search reads windows of the
log, and begins and ends at the right times, because events are recorded in the order of their times. It reads at most
`max_seqs` of the search policy, or dead letters or parked events, and says where to continue.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox import log_head, tables
from app.outbox.admin.event_states import DEAD, DISCARDED, PARKED, PENDING, RecordedEvent, recorded_events
from app.outbox.admin.replays import Selection
from app.outbox.column_values import NEVER
from app.outbox.declared import find_target
from app.outbox.engine.database import Database
from app.outbox.engine.many_rows import chunks, search_each
from app.outbox.log.arrivals import unread_of_targets
from app.outbox.log.reading import is_discarded_for, is_for, is_named
from app.outbox.policies import SEARCH

_COLUMNS = [column for column in tables.events.c if column.name not in ("record", "key_hash", "sequencer")]


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events to search: a checked selection, those for a target, those in a state (at the target, or at any)."""

    selection: Selection = field(default_factory=Selection)
    target: TargetId | None = None
    state: str = ""


@dataclass(frozen=True, slots=True)
class SearchPage:
    """A page of events, newest first, without their records.

    `next` is the seq below which the next page begins; None if the log was searched to its end. A page may have few
    events, or none, and still have a next one: `searched_to` is the time (ms) of the oldest event that was looked at,
    0 if none was.
    """

    events: Sequence[RecordedEvent]
    next: int | None
    searched_to: int


def search(database: Database, which: EventFilter, *, limit: int = 100, after: int = 0) -> SearchPage:
    """Return up to `limit` events, newest first; with `after`, those recorded before the event of this seq.

    Events that the database's clock dated wrongly, because it was set back, are found only where the times of their
    neighbours are searched. Raises `UnknownTarget`.
    """
    with database.snapshot() as connection:
        return _Search(connection, which, limit).page(after)


class _Partition(NamedTuple):
    partition: int


class _Search:
    """One search in one snapshot."""

    def __init__(self, connection: sa.Connection, which: EventFilter, limit: int) -> None:
        self._connection = connection
        self._which = which
        self._head = log_head.read(connection)
        self._target_id = None if which.target is None else find_target(connection, which.target).row_id
        self._until = time.monotonic() + SEARCH.max_seconds
        self._read = 0
        self._size = min(SEARCH.first_window_seqs, SEARCH.window_seqs)
        self._missing = limit  # events that the page still lacks

    def page(self, after: int) -> SearchPage:
        selection = self._which.selection
        newest = min(self._head.last_seq, after - 1 if after else NEVER)
        if selection.before < NEVER:
            newest = min(newest, self._first_at(selection.before + SEARCH.clock_margin_ms) - 1)
        oldest = self._first_at(selection.since - SEARCH.clock_margin_ms) if selection.since > 0 else 1
        if self._which.state == PENDING:
            oldest = max(oldest, self._first_unsettled())
        events: list[RecordedEvent] = []
        step = self._candidates if self._which.state in (PARKED, DEAD) else self._window
        while newest >= oldest:
            if self._read >= SEARCH.max_seqs or (self._read >= SEARCH.min_seqs and time.monotonic() > self._until):
                return SearchPage(events, newest + 1, self._time_at(newest + 1))
            rows, newest = step(newest, oldest)
            for event in self._in_state(rows):
                events.append(event)
                self._missing -= 1
                if not self._missing:
                    return SearchPage(events, event.seq, event.received_at)
        return SearchPage(events, None, self._time_at(oldest))

    def _window(self, newest: int, oldest: int) -> tuple[Sequence[Any], int]:
        """Return matching events up to a seq, newest first, and the seq up to which to continue."""
        top = self._last_seq(tables.events, newest)
        if top is None or top < oldest:
            return (), oldest - 1
        e = tables.events.c
        below = max(oldest - 1, top - self._size)
        most = SEARCH.batch_events if self._which.state else self._missing
        query = (
            self._select()
            .where(e.partition.in_(range(self._head.partitions)), e.seq > below, e.seq <= top)
            .order_by(e.seq.desc())
            .limit(most)
        )
        rows = self._connection.execute(query).all()
        reached = rows[-1].seq - 1 if len(rows) == most else below
        self._read += top - reached
        self._size = min(
            SEARCH.window_seqs,
            max(SEARCH.first_window_seqs, self._size * 4 if len(rows) < most else self._size // 4),
        )
        return rows, reached

    def _candidates(self, newest: int, oldest: int) -> tuple[Sequence[Any], int]:
        """As `_window`, for parked events or dead letters: it reads no others."""
        table = tables.parked if self._which.state == PARKED else tables.dead_letters
        ends = self._ends(table, newest, SEARCH.batch_rows)
        self._read += max(1, len(ends))
        by_partition: dict[int, list[int]] = defaultdict(list)
        for row in ends:
            by_partition[row.place].append(row.seq)
        # What a partition has below the last of its rows is known of those only that have no more of them.
        reached = max((min(seqs) for seqs in by_partition.values() if len(seqs) == SEARCH.batch_rows), default=oldest)
        reached = max(reached, oldest)
        e = tables.events.c
        rows = [
            row
            for partition, seqs in by_partition.items()
            for row in self._connection.execute(
                self._select().where(e.partition == partition, e.seq.in_([seq for seq in seqs if seq >= reached]))
            )
        ]
        return sorted(rows, key=lambda row: -row.seq), reached - 1

    def _select(self) -> sa.Select[Any]:
        e, selection = tables.events.c, self._which.selection
        query = sa.select(*_COLUMNS)
        if selection.since > 0:
            query = query.where(e.received_at >= selection.since)
        if selection.before < NEVER:
            query = query.where(e.received_at < selection.before)
        if selection.bucket:
            query = query.where(e.bucket == selection.bucket)
        if selection.prefix:
            query = query.where(sa.func.substr(e.key, 1, len(selection.prefix)) == selection.prefix)
        if selection.names:
            query = query.where(is_named(e.name, selection.names))
        if self._which.state == DISCARDED:
            query = query.where(is_discarded_for(self._target_id))
        elif self._target_id is not None:
            query = query.where(is_for(self._target_id))
        return query

    def _first_unsettled(self) -> int:
        """Return the seq of the first event that may be pending, at the target or at any."""
        windows = unread_of_targets(self._connection, None if self._target_id is None else [self._target_id])
        return min((window.after for window in windows), default=self._head.last_seq) + 1

    def _in_state(self, rows: Sequence[Any]) -> Iterator[RecordedEvent]:
        """Yield the rows' events that are in the state, at the target if there is one; reads some states at a time."""
        for some in chunks(rows, SEARCH.batch_events):
            for event in recorded_events(self._connection, some):
                states = [one.state for one in event.delivery_states if self._which.target in (None, one.target)]
                if not self._which.state or self._which.state in states:
                    yield event

    def _first_at(self, at: int) -> int:
        """Return a seq before which every event was received before `at` (ms), and after which none was.

        Most of the way is found in one partition, because a query of each partition costs as much as all those of one.
        """
        low, high = 1, self._head.last_seq + 1
        newest = max(self._ends(tables.events, NEVER, 1), key=lambda row: row.seq, default=None)
        for partitions in ((newest.place,), range(self._head.partitions)) if newest is not None else ():
            first, last = None, high
            while low < last:
                middle = (low + last) // 2
                row = self._first_event(middle, partitions)
                if row is None or row.received_at >= at:
                    first, last = (first if row is None else row), middle
                else:
                    low = row.seq + 1
            high = first.seq if first is not None else high
        return low

    def _time_at(self, seq: int) -> int:
        row = self._first_event(seq)
        return 0 if row is None else int(row.received_at)

    def _first_event(self, seq: int, partitions: Sequence[int] | None = None) -> Any | None:
        """Return seq and time of the first event at or after a seq, in any partition or in some."""
        where = f"WHERE {{column}} = {{partition}} AND seq >= {seq:d}"
        rows = self._of_each(f"SELECT seq, received_at FROM events {where} ORDER BY seq LIMIT 1", partitions)  # noqa: S608 - numbers
        return min(rows, key=lambda row: row.seq, default=None)

    def _last_seq(self, table: sa.Table, seq: int) -> int | None:
        return max((row.seq for row in self._ends(table, seq, 1)), default=None)

    def _ends(self, table: sa.Table, seq: int, most: int) -> Sequence[Any]:
        """Return the last `most` rows of each partition up to a seq, those of the target if there is one."""
        mine = "" if self._target_id is None or table is tables.events else f"target_id = {self._target_id:d} AND "
        where = f"{mine}{{column}} = {{partition}} AND seq <= {seq:d}"
        return self._of_each(
            f"SELECT seq, {{partition}} AS place FROM {table.name} WHERE {where} ORDER BY seq DESC LIMIT {most:d}"  # noqa: S608 - numbers
        )

    def _of_each(self, select: str, partitions: Iterable[int] | None = None) -> Sequence[Any]:
        """Run a query of each partition, or of some."""
        numbers = range(self._head.partitions) if partitions is None else partitions
        return list(search_each(self._connection, select, map(_Partition, numbers)))
