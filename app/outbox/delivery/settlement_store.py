"""Settle the batches of a lease's holder: deliver, supersede, park, retry and bury their events.

A `Settlement` has the changes of a worker's batch as values. The store writes it in one transaction, guarded by the
lease's fencing token: a worker that has lost its lease writes nothing. So does one whose cursors do not stand where it
has left them, or whose log has another epoch by now: the outbox is an older state of itself, after a failover to a
lagging replica or a restore, which may have the token, but other events at the same positions.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import orjson
import sqlalchemy as sa

from app.outbox import log_head, tables
from app.outbox.column_values import UNSTORABLE_REASON, WHOLE_LOG
from app.outbox.delivery.availability import read_mark
from app.outbox.delivery.due_work import ObjectHash
from app.outbox.delivery.leases import Lease, LeaseLost, ReplayPartition
from app.outbox.delivery.logged_events import LoggedEvent
from app.outbox.delivery.partition_reader import ParkedEvent, PartitionReader
from app.outbox.delivery.transitions import end_replay, restore_heads
from app.outbox.engine.database import VALUE_ERRORS, Database, describe_error, refuses_value
from app.outbox.engine.many_rows import MAX_SEARCHES, chunks, own_cursors, repeated_after_deadlock
from app.outbox.object_versions import ObjectVersions


@dataclass(slots=True)
class Progress:
    """The changes of one settlement to one partition's cursor.

    `replayed` is how many of its delivered, superseded and dead events were replayed, so that they hold no place in the
    target's queue.
    """

    position: int | None = None
    delivered: int = 0
    superseded: int = 0
    dead: int = 0
    replayed: int = 0
    failed: int = 0  # attempts that failed or were rejected

    @property
    def settled(self) -> int:
        """The number of events that it settles."""
        return self.delivered + self.superseded + self.dead


@dataclass(frozen=True, slots=True)
class ParkedRow:
    """A new or changed row of `parked` to write."""

    partition: int
    seq: int
    key_hash: int
    not_before: int
    attempts: int = 0
    first_tried: int = 0
    last_tried: int = 0
    history: str = "[]"
    refused_at: int = 0


@dataclass(frozen=True, slots=True)
class NewDeadLetter:
    """A dead letter to write."""

    partition: int
    seq: int
    event_id: str
    reason: str
    attempts: int
    first_tried: int
    last_tried: int
    history: str


@dataclass(slots=True)
class Settlement:
    """The changes of one batch, which are written together. Its transitions keep the counters balanced.

    `waiting` is the event as it was parked, None for one that was read after a cursor.
    """

    progress: dict[int, Progress] = field(default_factory=dict)
    replay: tuple[ReplayPartition, int] | None = None  # the replay of this batch, and its new position
    parked: list[ParkedRow] = field(default_factory=list)
    retried: list[ParkedRow] = field(default_factory=list)
    buried: list[NewDeadLetter] = field(default_factory=list)
    removed: list[ParkedEvent] = field(default_factory=list)  # that are parked no more
    delivered_at: int = 0  # when the target confirmed an event of this batch (ms), 0 if it confirmed none

    def deliver(self, event: LoggedEvent, waiting: ParkedEvent | None = None) -> None:
        """Count an event as delivered: the target has it, or what it would have written."""
        self.partition(event.partition).delivered += 1
        self._remove(waiting)

    def deliver_many(self, partition: int, count: int) -> None:
        """Count that many events, read after the cursor, as delivered."""
        self.partition(partition).delivered += count

    def supersede(self, event: LoggedEvent, waiting: ParkedEvent | None = None) -> None:
        """Count an event as superseded: it was not sent, because a newer one of its object is known."""
        self.partition(event.partition).superseded += 1
        self._remove(waiting)

    def park(self, row: ParkedRow, *, failed: bool = False) -> None:
        """Park an event that was read after a cursor; with `failed` an attempt at it has failed."""
        self.partition(row.partition).failed += failed
        self.parked.append(row)

    def retry(self, row: ParkedRow, *, failed: bool = False) -> None:
        """Have an event that is parked wait for its next attempt; with `failed` the last one has failed."""
        self.partition(row.partition).failed += failed
        self.retried.append(row)

    def bury(self, event: LoggedEvent, last: ParkedRow, reason: str, waiting: ParkedEvent | None = None) -> None:
        """Make an event a dead letter, after a failed attempt; `last` has all its attempts."""
        progress = self.partition(event.partition)
        progress.dead += 1
        progress.failed += 1
        tried = (last.attempts, last.first_tried, last.last_tried, last.history)
        self.buried.append(NewDeadLetter(event.partition, event.seq, event.event.id, reason, *tried))
        self._remove(waiting)

    def _remove(self, waiting: ParkedEvent | None) -> None:
        if waiting is not None:
            self.partition(waiting.logged.partition).replayed += waiting.replayed
            self.removed.append(waiting)

    def partition(self, partition: int) -> Progress:
        """Return the partition's progress, created if there is none yet."""
        return self.progress.setdefault(partition, Progress())

    @property
    def passed(self) -> int:
        """The number of events read after a cursor that it settles or parks."""
        return len(self.parked) + sum(progress.settled for progress in self.progress.values())

    @property
    def only_advances(self) -> bool:
        """Whether it only advances cursors of the log."""
        return not (self.replay or self.parked or self.retried or self.removed or self.buried)

    @property
    def only_fails(self) -> bool:
        """Whether attempts have failed, and the target confirmed no event."""
        return not self.delivered_at and any(one.failed for one in self.progress.values())

    @property
    def objects(self) -> set[ObjectHash]:
        """The objects whose parked events it adds, changes or removes."""
        changed = {(row.partition, row.key_hash) for row in chain(self.parked, self.retried)}
        return changed | {waiting.logged.object for waiting in self.removed}


log = logging.getLogger("bucketwire.outbox")


class SettlementStore:
    """Read and settle for the worker that holds a lease."""

    def __init__(self, database: Database, lease_ms: int) -> None:
        self._database = database
        self._lease_ms = lease_ms

    @property
    def database(self) -> Database:
        """The outbox."""
        return self._database

    @contextmanager
    def reading(self, lease: Lease, *, newest: bool = False) -> Iterator[PartitionReader]:
        """Yield a reader for the lease. With `newest`, for a mirror, it also reads which events are superseded."""
        lease.mirror = newest
        with self._database.reading() as connection:
            yield PartitionReader(
                connection, lease, ObjectVersions(self._database, connection, lease) if newest else None
            )

    def settle(self, lease: Lease, settlement: Settlement, now: int) -> None:
        """Write a settlement and renew the lease of its partitions. Raises `LeaseLost`; then nothing was written.

        A reason that the database refuses is replaced by `UNSTORABLE_REASON`, and the settlement is still written.
        """
        try:
            self._write(lease, settlement, now, _write_rows)
        except (sa.exc.SQLAlchemyError, *VALUE_ERRORS) as error:
            if not refuses_value(error):
                raise
            # Otherwise the same events would be delivered, and their settlement refused, repeatedly.
            log.warning(
                "the outbox database refused a value, so each event is settled by itself: %s", describe_error(error)
            )
            self._write(lease, settlement, now, _write_one_by_one)
        lease.has_parked |= bool(settlement.objects)
        for partition, progress in settlement.progress.items():
            if progress.position is not None:
                lease.positions[partition] = progress.position
        if settlement.replay is not None:
            replay, position = settlement.replay
            replay.position = position
            lease.replays = [other for other in lease.replays if other.position < other.until]

    @repeated_after_deadlock
    def _write(self, lease: Lease, settlement: Settlement, now: int, write_rows: "_WriteRows") -> None:
        # A statement of several cursors is in a transaction, because one of them may have another token.
        alone = settlement.only_advances and len(settlement.progress) == 1
        with self._database.committing() if alone else self._database.writing() as connection:
            mark = read_mark(connection, lease.target_id) if settlement.only_fails else None
            for part in chunks(sorted(settlement.progress.items()), MAX_SEARCHES):
                _advance(connection, lease, dict(part), settlement, now + self._lease_ms)
            if mark is not None:
                failed = {partition: one.failed for partition, one in settlement.progress.items() if one.failed}
                _count_in_row(connection, lease.target_id, failed, mark, now)
            if settlement.replay is not None:
                _advance_replay(connection, lease, *settlement.replay, settlement.passed)
            write_rows(connection, _rows(settlement, lease.target_id))
            _unpark(connection, lease.target_id, settlement.removed)
            restore_heads(connection, lease.target_id, settlement.objects)


def _advance(
    connection: sa.Connection, lease: Lease, progress: Mapping[int, Progress], settlement: Settlement, lease_ends: int
) -> None:
    """Advance the log's own cursors of some partitions.

    Raises `LeaseLost` if one of them has another token or stands elsewhere than the lease, or if the log's epoch is not
    that of the lease.

    One statement for many of them: where events come in all the time, a batch has a few of each partition. Its numbers
    are literals, because SQLAlchemy takes longer to bind so many than the database to run it.
    """
    place = connection.dialect.identifier_preparer.quote("partition")

    def by_partition(values: Mapping[int, str], otherwise: str) -> str:
        cases = "".join(f" WHEN {partition:d} THEN {value}" for partition, value in values.items())
        return f"CASE {place}{cases} ELSE {otherwise} END" if cases else otherwise

    moved = {partition: one.position for partition, one in progress.items() if one.position is not None}
    changes = {
        "leased_until": f"CASE WHEN leased_until < {lease_ends:d} THEN {lease_ends:d} ELSE leased_until END",
        "position": by_partition({partition: f"{to:d}" for partition, to in moved.items()}, "position"),
    }
    for column, numbers in _added(progress, freeing=settlement.replay is None).items():
        if numbers:
            added = by_partition({partition: f"{number:d}" for partition, number in numbers.items()}, "0")
            changes[column] = f"{column} + {added}"
    if lease.mirror and moved:
        # A mirror has folded the events that it settles, unless it missed an earlier event.
        folds = {
            partition: f"CASE WHEN folded >= {lease.positions[partition]:d} AND folded < {to:d}"
            f" THEN {to:d} ELSE folded END"
            for partition, to in moved.items()
        }
        changes["folded"] = by_partition(folds, "folded")
    if settlement.delivered_at:
        changes["delivered_at"] = f"{settlement.delivered_at:d}"
    known = by_partition({partition: f"{lease.positions[partition]:d}" for partition in progress}, "-1")
    mark = "?" if connection.dialect.paramstyle == "qmark" else "%s"
    updated = connection.exec_driver_sql(
        f"UPDATE cursors SET {', '.join(f'{column} = {value}' for column, value in changes.items())}"  # noqa: S608 - numbers
        f" WHERE target_id = {lease.target_id:d} AND replay_id = {WHOLE_LOG:d} AND lease_token = {mark}"
        f" AND {place} IN ({', '.join(map(str, progress))}) AND position = {known}"
        f" AND {log_head.still_has(connection.dialect.name, mark, max(moved.values(), default=0))}",
        (lease.token, lease.epoch),
    )
    if updated.rowcount != len(progress):
        raise LeaseLost(f"partitions {', '.join(map(str, progress))} of target {lease.target_id}")


def _added(progress: Mapping[int, Progress], *, freeing: bool) -> dict[str, dict[int, int]]:
    """Return what is added to the counters of cursors that changes them, by column and partition."""
    counted: dict[str, dict[int, int]] = {name: {} for name in ("delivered", "superseded", "dead", "failed", "freed")}
    for partition, one in progress.items():
        freed = one.settled - one.replayed if freeing else 0
        for name, number in zip(counted, (one.delivered, one.superseded, one.dead, one.failed, freed), strict=True):
            if number:
                counted[name][partition] = number
    return counted


def _count_in_row(connection: sa.Connection, target_id: int, failed: Mapping[int, int], mark: int, now: int) -> None:
    """Count failed attempts, by partition. The caller has locked these cursors, and knows of no success since."""
    c = tables.cursors.c
    is_going_on = c.failed_mark == mark
    known = sa.case((is_going_on, c.failed_in_row), else_=0)
    added = sa.case(failed, value=c.partition, else_=0)
    connection.execute(
        tables.cursors.update()
        .where(own_cursors(target_id, failed))
        # In this order: MySQL computes each value with those before it.
        .ordered_values(
            (c.failed_in_row, known + added),
            (c.failed_since, sa.case((is_going_on, c.failed_since), else_=now)),
            (c.failed_mark, mark),
        )
    )


def _advance_replay(
    connection: sa.Connection, lease: Lease, replay: ReplayPartition, position: int, events: int
) -> None:
    """Move a replay's cursor; at its end remove it and keep its counts. The caller has locked the log's own cursor.

    Raises `LeaseLost` if the replay was cancelled, or its cursor stands elsewhere than that of the lease.
    """
    c = tables.cursors.c
    mine = (c.target_id == lease.target_id, c.partition == replay.partition, c.replay_id == replay.replay_id)
    moved = {"position": position, "until": replay.until, "replayed": c.replayed + events}
    known = tables.cursors.update().where(*mine, c.position == replay.position)
    if connection.execute(known.values(moved)).rowcount != 1:
        raise LeaseLost(f"replay {replay.replay_id} in partition {replay.partition} of target {lease.target_id}")
    if position >= replay.until:
        end_replay(connection, lease.target_id, replay.replay_id, replay.partition)


_Rows = Sequence[tuple[sa.Executable, Sequence[dict[str, Any]]]]  # statements, and the values to run each with
_WriteRows = Callable[[sa.Connection, _Rows], None]
_PARK = tables.parked.insert()
_RETRY = tables.parked.update().where(
    tables.parked.c.target_id == sa.bindparam("of_target"),
    tables.parked.c.partition == sa.bindparam("of_partition"),
    tables.parked.c.seq == sa.bindparam("of_seq"),
)
_BURY = tables.dead_letters.insert()


def _rows(settlement: Settlement, target_id: int) -> _Rows:
    """Return the statements and rows of a settlement that contain texts from the target."""
    replayed = settlement.replay is not None
    return (
        (_PARK, [{"target_id": target_id, "replayed": replayed, **_values(row)} for row in settlement.parked]),
        (_RETRY, [_retried(row, target_id) for row in settlement.retried]),
        (_BURY, [{"target_id": target_id, **_values(letter)} for letter in settlement.buried]),
    )


def _values(entry: ParkedRow | NewDeadLetter) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in entry.__slots__}


def _retried(row: ParkedRow, target_id: int) -> dict[str, Any]:
    values = _values(row)
    return {"of_target": target_id, "of_partition": values.pop("partition"), "of_seq": values.pop("seq"), **values}


def _write_rows(connection: sa.Connection, rows: _Rows) -> None:
    for statement, values in rows:
        if values:
            connection.execute(statement, values)


def _write_one_by_one(connection: sa.Connection, rows: _Rows) -> None:
    for statement, values in rows:
        for row in values:
            try:
                with connection.begin_nested():
                    connection.execute(statement, row)
            except (sa.exc.SQLAlchemyError, *VALUE_ERRORS) as error:
                if not refuses_value(error):
                    raise
                connection.execute(statement, _with_plain_reason(row))


def _with_plain_reason(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same row with reasons that every database can store."""
    history = [[row["last_tried"], UNSTORABLE_REASON]] if row["attempts"] else []
    plain = {"history": orjson.dumps(history).decode()}
    return {**row, **plain, **({"reason": UNSTORABLE_REASON} if "reason" in row else {})}


def _unpark(connection: sa.Connection, target_id: int, events: Sequence[ParkedEvent]) -> None:
    p = tables.parked.c
    by_partition: defaultdict[int, list[int]] = defaultdict(list)
    for event in events:
        by_partition[event.logged.partition].append(event.logged.seq)
    for partition, seqs in by_partition.items():
        mine = (p.target_id == target_id, p.partition == partition)
        for some in chunks(seqs):
            connection.execute(tables.parked.delete().where(*mine, p.seq.in_(some)))
