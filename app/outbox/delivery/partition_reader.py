"""Read the due events of a lease's partitions."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple

import sqlalchemy as sa

from app.events.order import Holding
from app.outbox import tables
from app.outbox.column_values import NEVER
from app.outbox.delivery.due_work import ObjectHash, PartitionOf, Refusals, first_due, oldest_parked, read_refusals
from app.outbox.delivery.leases import Lease, ReplayPartition, has_work
from app.outbox.delivery.logged_events import (
    LoggedEvent,
    LogPosition,
    events_after,
    fill_in_newest,
    histories,
    logged_event,
    neither_parked_nor_dead,
    object_key,
    select_ahead,
    select_logged,
    selected,
    with_records,
)
from app.outbox.engine.many_rows import chunks
from app.outbox.log import arrivals
from app.outbox.log.arrivals import LogWindow, unread_after
from app.outbox.log.reading import first_within_budget, is_for, readable
from app.outbox.object_versions import ObjectVersions
from app.outbox.policies import PARTITION_READS

_P = tables.parked.c
_TIMED = sa.select(_P.partition, _P.key_hash, _P.seq, _P.not_before).where(  # by an index: one row for each object
    _P.target_id == sa.bindparam("target"),
    _P.partition == sa.bindparam("partition"),
    _P.key_hash.in_(sa.bindparam("hashes", expanding=True)),
    _P.not_before < NEVER,
)


@dataclass(frozen=True, slots=True)
class ParkedEvent:
    """A parked event and its attempts."""

    logged: LoggedEvent
    attempts: int
    first_tried: int
    history: str
    last_tried: int = 0
    refused_at: int = 0  # when the target last answered "unavailable" to it, 0 for never
    replayed: bool = False  # does not count against the target's queue_limit


class Redelivery(NamedTuple):
    """A request to deliver an object's newest state again; `since` is the seq of the oldest suspect event."""

    partition: int
    key_hash: int
    since: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Events read after the cursors, and the seq up to which each partition was read.

    There may be none where many events of other targets come first. `at_end` is true if every partition was read to the
    target's last event.
    """

    events: Sequence[LoggedEvent]
    scanned: Mapping[int, int]
    at_end: bool = False


class PartitionReader:
    """The reads of a lease's holder, over one connection for as long as it works."""

    def __init__(self, connection: sa.Connection, lease: Lease, versions: ObjectVersions | None = None) -> None:
        self._connection = connection
        self._lease = lease
        self._versions = versions
        self._newest = versions is not None
        self._target = is_for(lease.target_id)
        self._seen = 0  # the seq of the newest event that this reader knows of

    def load(self, limit: int) -> Batch:
        """Return about `limit` next events after the lease's cursors, per partition oldest first.

        There are fewer if their records are long: those of a batch have a budget of bytes, but it has one event at
        least. Partitions with an unfinished replay are left out.
        """
        replaying = {replay.partition for replay in self._lease.replays}
        positions = {
            partition: position for partition, position in self._lease.positions.items() if partition not in replaying
        }
        windows = self._unread(positions)
        if not windows:
            return Batch((), {}, not replaying)
        events, scanned = self._within_budget(*self._load(windows, max(1, limit // len(windows))))
        loaded = [logged for some in events.values() for logged in some]
        if self._versions is not None and self._versions.concerns([logged.event for logged in loaded], scanned):
            self._versions.fold(histories(loaded))
        at_end = not replaying and all(seq >= windows[partition].until for partition, seq in scanned.items())
        return Batch(self._resolved(loaded), scanned, at_end)

    def has_new_events(self) -> bool:
        """Return whether the partitions may have events that were recorded since the last `load`."""
        return bool(self._unread(self._lease.positions, newer_than=self._seen))

    def _unread(self, positions: Mapping[int, int], newer_than: int = 0) -> dict[int, LogWindow]:
        """Return which part of the log after each position has events, by partition."""
        windows = unread_after(self._connection, self._lease.target_id, positions, newer_than)
        self._seen = max((window.until for window in windows.values()), default=self._seen)
        return windows

    def _load(
        self, windows: Mapping[int, LogWindow], share: int
    ) -> tuple[dict[int, list[LoggedEvent]], dict[int, int]]:
        """Return the next events of each partition, up to a share, and the seq up to which it was read.

        Makes at most `PARTITION_READS.max_windows` searches, because many events of other targets may come first.
        """
        events: dict[int, list[LoggedEvent]] = {partition: [] for partition in windows}
        scanned, left = {partition: window.after for partition, window in windows.items()}, dict(windows)
        for _ in range(PARTITION_READS.max_windows):
            missing = share - max(len(events[partition]) for partition in left)  # 1 or more
            parts = [window.first_part for window in left.values()]
            read = events_after(self._connection, parts, missing, newest=self._newest)
            for part in parts:
                some = read.get(part.partition, [])
                events[part.partition] += some
                scanned[part.partition] = some[-1].seq if len(some) == missing else part.until
                if len(some) == missing or part.until == left[part.partition].until:
                    del left[part.partition]
                else:
                    left[part.partition] = left[part.partition]._replace(after=part.until)
            if not left:
                break
        return events, scanned

    def _within_budget(
        self, events: dict[int, list[LoggedEvent]], scanned: dict[int, int]
    ) -> tuple[dict[int, list[LoggedEvent]], dict[int, int]]:
        """Return what `_load` read without the newest events, of all partitions, that exceed the budget of bytes."""
        loaded = sorted((logged for some in events.values() for logged in some), key=attrgetter("seq"))
        kept, beyond = with_records(self._connection, loaded)
        by_partition: dict[int, list[LoggedEvent]] = {partition: [] for partition in events}
        for logged in kept:
            by_partition[logged.partition].append(logged)
        if beyond is not None:
            for partition, some in events.items():
                first = next((logged.seq for logged in some if logged.seq >= beyond), None)
                if first is not None:
                    scanned[partition] = first - 1
        return by_partition, scanned

    def load_replay(self, replay: ReplayPartition, limit: int) -> Batch:
        """Return the next events of a replay, which ends at `replay.until`.

        Scans at most `PARTITION_READS.max_replay_seqs` events of the log: even if none of many millions is selected,
        each query stays short and the replay advances.
        """
        if replay.position >= replay.window:
            replay.window = self._window(replay)
        query = select_ahead(self._lease.target_id, newest=self._newest).where(*selected(replay))
        window = {"partition": replay.partition, "position": replay.position, "until": replay.window, "share": limit}
        loaded = [logged_event(row, newest=self._newest) for row in self._connection.execute(query, window)]
        scanned = loaded[-1].seq if len(loaded) == limit else replay.window
        kept, beyond = with_records(self._connection, loaded)
        return Batch(self._resolved(kept), {replay.partition: scanned if beyond is None else beyond - 1})

    def _window(self, replay: ReplayPartition) -> int:
        """Return the seq of the last event, of any target, that one query scans after the replay's position."""
        e = tables.events.c
        last = sa.select(e.seq).where(e.partition == replay.partition, e.seq > replay.position, e.seq <= replay.until)
        last = last.order_by(e.seq).offset(PARTITION_READS.max_replay_seqs - 1).limit(1)
        seq = self._connection.execute(last).scalar_one_or_none()
        return replay.until if seq is None else int(seq)

    def recheck_parked(self) -> None:
        """Read again whether there are parked events: time has passed in which others may have parked some."""
        self._lease.has_parked = True

    def has_work(self) -> bool:
        """Return whether the partitions have events after the cursors, or parked ones."""
        return has_work(self._connection, self._lease.target_id, self._lease.positions)

    def due_objects(self, now: int, limit: int, among: Set[int] | None = None) -> list[ObjectHash]:
        """Return up to `limit` objects whose first parked event is due at `now` (ms), the longest due first.

        Those that are due since the same time come in the order of the index, which needs no sorting. `among` are the
        partitions to look at, if not all of the lease.
        """
        p = tables.parked.c
        due: list[sa.Row[tuple[int, int, int]]] = []
        for partition, first in self._parked_partitions().items():
            if first <= now and (among is None or partition in among):
                query = sa.select(p.partition, p.key_hash, p.not_before)
                query = query.where(p.target_id == self._lease.target_id, p.partition == partition, p.not_before <= now)
                due += self._connection.execute(query.order_by(p.not_before).limit(limit))
        due.sort(key=lambda row: row.not_before)
        objects = list(dict.fromkeys((row.partition, row.key_hash) for row in due[:limit]))
        heads = self._heads(objects)
        return [key for key in objects if key in heads and heads[key].not_before <= now]

    def objects_in_flight(self, partitions: Set[int], now: int, limit: int) -> dict[ObjectHash, int]:
        """Return the objects of which the last holder of some partitions may have sent events that it did not settle.

        Each has the seq of the oldest such event. The holder had read at most `limit` events after each cursor, of each
        replay, and of the objects whose parked events are due at `now` (ms).
        """
        read = PARTITION_READS.max_windows * arrivals.WINDOW_SEQS
        windows = [
            window._replace(until=min(window.until, window.after + read))
            for window in self._unread(self._lease.positions).values()
            if window.partition in partitions
        ]
        ahead = events_after(self._connection, windows, limit, newest=self._newest)
        events = [logged for some in ahead.values() for logged in some]
        for replay in self._lease.replays:
            if replay.partition in partitions:
                events += self.load_replay(replay, limit).events
        oldest = {key: int(row.seq) for key, row in self._heads(self.due_objects(now, limit, partitions)).items()}
        for logged in events:
            oldest[logged.object] = min(logged.seq, oldest.get(logged.object, logged.seq))
        return oldest

    def waiting(self, events: Iterable[LoggedEvent]) -> set[ObjectHash]:
        """Return those of the events' objects that have a parked event, behind which their later events wait."""
        objects = {logged.object for logged in events}
        parked = self._parked_partitions().keys() if objects else ()
        return set(self._heads([(partition, key_hash) for partition, key_hash in objects if partition in parked]))

    def _parked_partitions(self) -> dict[int, int]:
        """Return the lease's partitions that have parked events, and when the first of each is due (ms)."""
        if not self._lease.has_parked:
            return {}
        target_id = self._lease.target_id
        first = first_due(self._connection, [PartitionOf(target_id, place) for place in self._lease.positions])
        self._lease.has_parked = bool(first)
        return {partition: due for (_, partition), due in first.items()}

    def _heads(self, objects: Iterable[ObjectHash]) -> dict[ObjectHash, Any]:
        """Return the head of each object that has parked events: partition, key_hash, seq, not_before (ms)."""
        by_partition: dict[int, list[int]] = {}
        for partition, key_hash in sorted(objects):
            by_partition.setdefault(partition, []).append(key_hash)
        rows = [
            row
            for partition, hashes in by_partition.items()
            for some in chunks(hashes)
            for row in self._connection.execute(
                _TIMED, {"target": self._lease.target_id, "partition": partition, "hashes": some}
            )
        ]
        rows.sort(key=lambda row: row.seq, reverse=True)  # if there are several, the oldest counts
        return {(row.partition, row.key_hash): row for row in rows}

    def load_parked(self, objects: Sequence[ObjectHash], limit: int) -> list[ParkedEvent]:
        """Return up to `limit` parked events of some objects, of each the oldest ones in order; of many only the heads.

        There are fewer, the oldest, if their records exceed the budget of bytes; one at least.
        The cost does not grow with the events that wait behind them.
        """
        p, e = tables.parked.c, tables.events.c
        target_id = self._lease.target_id
        if len(objects) > PARTITION_READS.few_objects:
            places = [(row.partition, row.seq) for row in self._heads(objects).values()]
        else:
            places = oldest_parked(self._connection, target_id, objects, max(1, limit // max(1, len(objects))))
        query = (
            select_logged(target_id, newest=self._newest)
            .add_columns(p.attempts, p.first_tried, p.last_tried, p.history, p.refused_at, p.replayed)
            .join_from(tables.events, tables.parked, sa.and_(p.partition == e.partition, p.seq == e.seq))
            .where(p.target_id == target_id, p.partition.in_(sorted({partition for partition, _ in places})))
        )
        rows = [
            row
            for seqs in chunks(sorted(seq for _, seq in places))
            for row in self._connection.execute(query.where(p.seq.in_(seqs)).order_by(p.seq))
        ]
        by_seq = {row.seq: row for row in rows}
        kept, _ = with_records(self._connection, [logged_event(row, newest=self._newest) for row in rows])
        return [
            ParkedEvent(
                logged, row.attempts, row.first_tried, row.history, row.last_tried, row.refused_at or 0, row.replayed
            )
            for logged in self._resolved(kept)
            for row in (by_seq[logged.seq],)
        ]

    def refusals(self, now: int, known: Set[LogPosition]) -> Refusals:
        """Return what `read_refusals` does of the lease's target."""
        return read_refusals(self._connection, self._lease.target_id, now, known)

    def parked_or_dead(self, positions: Sequence[LogPosition]) -> set[LogPosition]:
        """Return those of a replay's events that are already parked or dead letters of the target."""
        known: set[LogPosition] = set()
        for table in (
            tables.dead_letters,
            tables.parked,
        ):  # in this order, a dead letter that is replayed concurrently is in one of them
            for some in chunks(positions):
                partitions, seqs = {partition for partition, _ in some}, [seq for _, seq in some]
                query = sa.select(table.c.partition, table.c.seq).where(
                    table.c.target_id == self._lease.target_id, table.c.partition.in_(partitions), table.c.seq.in_(seqs)
                )
                known.update((row.partition, row.seq) for row in self._connection.execute(query))
        return known

    def redeliveries(self, now: int) -> list[Redelivery]:
        """Return the due redeliveries requested for the lease's partitions, sorted by partition."""
        r = tables.redeliveries.c
        query = sa.select(r.partition, r.key_hash, r.since).where(
            r.target_id == self._lease.target_id, r.partition.in_(list(self._lease.positions)), r.due <= now
        )
        rows = self._connection.execute(query.order_by(r.partition, r.key_hash))
        return [Redelivery(row.partition, row.key_hash, row.since) for row in rows]

    def settled(self, requested: Redelivery, before: int, limit: int) -> list[LoggedEvent]:
        """Return an object's last `limit` settled events after `requested.since` and below seq `before`, in order.

        Events that are parked or dead letters are left out, and so are long records: only the events' order matters.
        """
        e = tables.events.c
        query = (
            select_logged(self._lease.target_id, newest=self._newest)
            .where(e.partition == requested.partition, e.key_hash == requested.key_hash, self._target)
            .where(e.seq > requested.since, e.seq < before, *neither_parked_nor_dead(self._lease.target_id))
            .order_by(e.seq.desc())
            .limit(limit)
        )
        return self._resolved([logged_event(row, newest=self._newest) for row in self._connection.execute(query)][::-1])

    def holdings(self, events: Iterable[LoggedEvent]) -> dict[tuple[str, str], Holding]:
        """Return the bucket's content under the events' keys, by (bucket, key), as known from the target's events."""
        if self._versions is None:
            raise TypeError("only a mirror's reader knows what buckets hold")
        holdings = self._versions.holdings(map(object_key, events))
        return {(key.bucket, key.key): holding for key, holding in holdings.items()}

    def records(self, positions: Iterable[LogPosition]) -> list[str | None]:
        """Return the records of the first of these events as JSON text, as many as the budget of bytes allows.

        They come from the log or from the copy made when they were purged; None stands for one that is in neither. An
        event that is named several times counts as often, because it is sent so often.
        """
        read = cache(self._record)
        return first_within_budget(read(partition, seq) for partition, seq in positions)

    def _record(self, partition: int, seq: int) -> str | None:
        e = tables.events.c
        query = sa.select(readable(e.record)).where(e.partition == partition, e.seq == seq)
        row = self._connection.execute(query).one_or_none()
        # In this order, because the purge moves a record from the log to its copy, and never back.
        if row is None and self._versions is not None:
            return self._versions.kept_record(partition, seq)
        return None if row is None else str(row.record)

    def _resolved(self, events: list[LoggedEvent]) -> list[LoggedEvent]:
        if self._versions is None:
            return events
        return fill_in_newest(self._connection, self._lease.target_id, self._versions, events)
