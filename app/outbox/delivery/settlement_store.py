"""Read what is due behind a lease's cursors, and settle it: the only code that writes delivery state.

A settlement is one transaction, guarded by the lease's token: a worker that lost its lease writes nothing.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import orjson
import sqlalchemy as sa

from app.events.effects import ContentChange, content_change
from app.events.model import Event
from app.events.version_history import Entry, Holding
from app.outbox import tables
from app.outbox.delivery.leases import Lease, LeaseLost, ReplayPartition, goes_to
from app.outbox.delivery.parked import ObjectHash, restore_heads
from app.outbox.delivery.reasons import PLAIN
from app.outbox.engine.database import VALUE_ERRORS, Database, describe_error, refuses_value
from app.outbox.log.append import chunks
from app.outbox.versions.object_versions import ObjectVersions
from app.outbox.versions.rows import ObjectKey

log = logging.getLogger("bucketwire.outbox")

LogPosition = tuple[int, int]  # partition and seq: where an event stands in the log


class LoggedEvent(NamedTuple):
    """An event as it stands in the log, seen by one target. (A tuple: made for every delivery of every event.)"""

    event: Event
    partition: int
    seq: int
    key_hash: int
    received_at: int
    newest: str | None = ""  # a mirror's: greatest comparable sequencer of its object; None: too many to look at

    @property
    def object(self) -> ObjectHash:
        """The line it stands in: an object's events go one after the other."""
        return self.partition, self.key_hash


@dataclass(frozen=True, slots=True)
class ParkedEvent:
    """A parked event and what was tried with it."""

    logged: LoggedEvent
    attempts: int
    first_tried: int
    history: str
    last_tried: int = 0
    refused_at: int = 0  # when the target last answered it "unavailable", 0 if it did not


@dataclass(frozen=True, slots=True)
class Refusals:
    """What the outbox knows of a target's refusals: when it last delivered, and which parked events it refused since.

    `partitions` are the partitions of those events; `of_others` says that there are such events besides those asked
    about.
    """

    delivered_at: int
    partitions: frozenset[int] = frozenset()
    of_others: bool = False


class Redelivery(NamedTuple):
    """A request that the newest state of an object be delivered again; `since` is the seq of the oldest suspect."""

    partition: int
    key_hash: int
    since: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Events read behind the cursors, and up to which seq each partition was read."""

    events: Sequence[LoggedEvent]
    scanned: Mapping[int, int]


@dataclass(slots=True)
class Progress:
    """What one settlement moves in one partition."""

    position: int | None = None
    delivered: int = 0
    superseded: int = 0
    dead: int = 0


@dataclass(frozen=True, slots=True)
class ParkedRow:
    """A row of `parked` to write, new or changed."""

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
    """Everything one batch changes; written as a whole or not at all."""

    progress: dict[int, Progress] = field(default_factory=dict)
    replay: tuple[ReplayPartition, int] | None = None  # this batch came from a replay, which is then up to here
    park: list[ParkedRow] = field(default_factory=list)
    repark: list[ParkedRow] = field(default_factory=list)
    unpark: list[LogPosition] = field(default_factory=list)
    deaths: list[NewDeadLetter] = field(default_factory=list)
    unblocked: set[ObjectHash] = field(default_factory=set)  # objects of `unpark`
    delivered_at: int = 0  # when the target confirmed an event of this batch (ms), 0 if it confirmed none

    @property
    def settled(self) -> int:
        """How many events read behind a cursor it settles or parks."""
        return len(self.park) + sum(one.delivered + one.superseded + one.dead for one in self.progress.values())

    def partition(self, partition: int) -> Progress:
        """The partition's progress, begun where there is none yet."""
        return self.progress.setdefault(partition, Progress())

    @property
    def objects(self) -> set[ObjectHash]:
        """The objects whose parked events it adds, changes or removes."""
        return self.unblocked | {(park.partition, park.key_hash) for park in chain(self.park, self.repark)}


_WINDOW = 10_000  # events of the log that one look of a replay passes over at most
_NEWER_LOOKED_AT = 16  # newer events of an object, whatever their target, that are looked at for each event
_HEAD = sa.select(tables.log_head.c.last_seq)
_COLUMNS = (
    tables.events.c.id,
    tables.events.c.name,
    tables.events.c.bucket,
    tables.events.c.key,
    tables.events.c.version,
    tables.events.c.sequencer,
    tables.events.c.time,
    tables.events.c.record,
    tables.events.c.partition,
    tables.events.c.seq,
    tables.events.c.key_hash,
    tables.events.c.received_at,
    tables.events.c.trace,
)


_C = tables.cursors.c
_ADVANCE = (
    tables.cursors.update()
    .where(_C.target_id == sa.bindparam("of_target"), _C.partition == sa.bindparam("of_partition"))
    .where(_C.replay_id == tables.WHOLE_LOG, _C.lease_token == sa.bindparam("token"))
    .values(
        position=sa.bindparam("to"),
        leased_until=sa.bindparam("lease_ends"),
        delivered=_C.delivered + sa.bindparam("more_delivered"),
        superseded=_C.superseded + sa.bindparam("more_superseded"),
        dead=_C.dead + sa.bindparam("more_dead"),
        # A mirror has folded what it settles, unless an event before that was missed.
        folded=sa.case(
            (sa.and_(_C.folded >= sa.bindparam("folded_before"), _C.folded < sa.bindparam("to")), sa.bindparam("to")),
            else_=_C.folded,
        ),
        delivered_at=sa.case(
            (sa.bindparam("confirmed_at", type_=sa.BigInteger) > 0, sa.bindparam("confirmed_at")),
            else_=_C.delivered_at,
        ),
    )
)


class PartitionReader:
    """What a lease's holder reads, over one connection for as long as it works."""

    def __init__(self, connection: sa.Connection, lease: Lease, versions: ObjectVersions | None = None) -> None:
        self._connection = connection
        self._lease = lease
        self._versions = versions
        self._newest = newest = versions is not None
        self._target = goes_to(lease.target_id)
        # Built once: putting a statement together takes longer than the database takes to answer it.
        self._ahead = _ahead(lease.target_id, newest=newest)
        p = tables.parked.c
        self._mine = sa.and_(p.target_id == lease.target_id, p.partition.in_(list(lease.positions)))
        self._heads = sa.select(p.partition, p.key_hash, p.seq, p.not_before).where(
            self._mine, p.not_before < tables.NEVER
        )

    def load(self, limit: int) -> Batch:
        """The next `limit` events behind the lease's cursors, per partition oldest first; a replaying partition
        waits.
        """
        replaying = {replay.partition for replay in self._lease.replays}
        positions = {
            partition: position for partition, position in self._lease.positions.items() if partition not in replaying
        }
        if not positions:
            return Batch((), {})
        share = max(1, limit // len(positions))
        # Read the head first: commits come in the order of seq, so up to here nothing can be missed.
        head = self._connection.execute(_HEAD).scalar_one()
        # One SELECT for each partition, so that each walks its index in order and stops at its share.
        events = [
            _logged(row)
            for partition, position in positions.items()
            for row in self._connection.execute(
                self._ahead, {"partition": partition, "position": position, "share": share}
            )
        ]
        scanned = dict.fromkeys(positions, head)
        for partition, count in Counter(logged.partition for logged in events).items():
            last = max(logged.seq for logged in events if logged.partition == partition)
            # What was recorded since the head was read may be in the batch too.
            scanned[partition] = last if count == share else max(head, last)
        if self._versions is not None and self._versions.concerns([logged.event for logged in events], scanned):
            self._versions.fold(_histories(events))
        return Batch(self._resolved(events), scanned)

    def load_replay(self, replay: ReplayPartition, limit: int) -> Batch:
        """The next events of a replay, which ends at `replay.until`.

        It looks at `_WINDOW` events of the log at most: where none of many millions is selected, each look stays short,
        and the replay moves on all the same.
        """
        if replay.position >= replay.window:
            replay.window = self._window(replay)
        query = self._ahead.where(tables.events.c.seq <= replay.window, *selected(self._lease.target_id, replay))
        place = {"partition": replay.partition, "position": replay.position, "share": limit}
        events = self._resolved([_logged(row) for row in self._connection.execute(query, place)])
        return Batch(events, {replay.partition: events[-1].seq if len(events) == limit else replay.window})

    def _window(self, replay: ReplayPartition) -> int:
        """The seq up to which there are `_WINDOW` events of any target after the replay's position."""
        e = tables.events.c
        last = sa.select(e.seq).where(e.partition == replay.partition, e.seq > replay.position, e.seq <= replay.until)
        found = self._connection.execute(last.order_by(e.seq).offset(_WINDOW - 1).limit(1)).scalar_one_or_none()
        return replay.until if found is None else int(found)

    def parked_heads(self) -> dict[ObjectHash, int]:
        """The objects of the lease's partitions that have parked events, and when the first of each is due (ms)."""
        rows = sorted(self._connection.execute(self._heads), key=lambda row: row.seq, reverse=True)
        return {(row.partition, row.key_hash): row.not_before for row in rows}

    def load_parked(self, objects: Iterable[ObjectHash], limit: int) -> list[ParkedEvent]:
        """Parked events of some objects, per object oldest first."""
        p, e = tables.parked.c, tables.events.c
        query = (
            _select(self._lease.target_id, newest=self._newest)
            .add_columns(p.attempts, p.first_tried, p.last_tried, p.history, p.refused_at)
            .join_from(tables.events, tables.parked, sa.and_(p.partition == e.partition, p.seq == e.seq))
            .where(self._mine, p.key_hash.in_(sorted({hashed for _, hashed in objects})))
            .order_by(p.seq)
            .limit(limit)
        )
        rows = self._connection.execute(query).all()
        events = self._resolved([_logged(row) for row in rows])
        return [
            ParkedEvent(logged, row.attempts, row.first_tried, row.history, row.last_tried, row.refused_at or 0)
            for logged, row in zip(events, rows, strict=True)
        ]

    def refusals(self, asked: Set[LogPosition] = frozenset()) -> Refusals:
        """When the target last delivered, in any partition, and which parked events but those `asked` it refused
        since.
        """
        c, p = tables.cursors.c, tables.parked.c
        mine = self._lease.target_id
        delivered_at = self._connection.execute(
            sa.select(sa.func.max(c.delivered_at)).where(c.target_id == mine)
        ).scalar_one()
        query = sa.select(p.partition, p.seq).where(p.target_id == mine, p.refused_at > (delivered_at or 0))
        places = {(row.partition, row.seq) for row in self._connection.execute(query)}
        return Refusals(delivered_at or 0, frozenset(partition for partition, _ in places), not places <= asked)

    def standing(self, places: Sequence[LogPosition]) -> set[LogPosition]:
        """Those of some events that are parked or dead for the target already, as a replay finds them."""
        found: set[LogPosition] = set()
        for table in (
            tables.dead_letters,
            tables.parked,
        ):  # so that one that is replayed just now is found in one of them
            for some in chunks(places):
                partitions, seqs = {partition for partition, _ in some}, [seq for _, seq in some]
                query = sa.select(table.c.partition, table.c.seq).where(
                    table.c.target_id == self._lease.target_id, table.c.partition.in_(partitions), table.c.seq.in_(seqs)
                )
                found.update((row.partition, row.seq) for row in self._connection.execute(query))
        return found

    def redeliveries(self) -> list[Redelivery]:
        """What was requested for the lease's partitions, in order of partition."""
        r = tables.redeliveries.c
        query = sa.select(r.partition, r.key_hash, r.since).where(
            r.target_id == self._lease.target_id, r.partition.in_(list(self._lease.positions))
        )
        rows = self._connection.execute(query.order_by(r.partition, r.key_hash))
        return [Redelivery(row.partition, row.key_hash, row.since) for row in rows]

    def settled(self, requested: Redelivery, before: int, limit: int) -> list[LoggedEvent]:
        """The last `limit` settled events of an object after `requested.since` and with a seq below `before`, in order.

        Without those that are parked or dead.
        """
        e = tables.events.c
        query = (
            _select(self._lease.target_id, newest=self._newest)
            .where(e.partition == requested.partition, e.key_hash == requested.key_hash, self._target)
            .where(e.seq > requested.since, e.seq < before, *neither_parked_nor_dead(self._lease.target_id))
            .order_by(e.seq.desc())
            .limit(limit)
        )
        return self._resolved([_logged(row) for row in self._connection.execute(query)][::-1])

    def holdings(self, events: Iterable[LoggedEvent]) -> dict[tuple[str, str], Holding]:
        """What the bucket holds under the keys of some events: (bucket, key) to what the target's events say."""
        if self._versions is None:
            raise TypeError("only a mirror's reader knows what buckets hold")
        found = self._versions.holdings(map(_object_key, events))
        return {(key.bucket, key.key): holding for key, holding in found.items()}

    def records(self, places: Iterable[LogPosition]) -> dict[LogPosition, str]:
        """The records of some events, as JSON text: from the log, or as they were kept when they left it."""
        e = tables.events.c
        found: dict[LogPosition, str] = {}
        for partition, seq in dict.fromkeys(places):
            row = self._connection.execute(
                sa.select(e.record).where(e.partition == partition, e.seq == seq)
            ).one_or_none()
            # In this order: the purge moves a record from the log to where it is kept, and never back.
            if row is None and self._versions is not None:
                record = self._versions.kept_record(partition, seq)
            else:
                record = row.record if row is not None else None
            if record is not None:
                found[partition, seq] = record
        return found

    def _resolved(self, events: list[LoggedEvent]) -> list[LoggedEvent]:
        """The events, with `newest` for those of which the database looked at too few newer ones to tell."""
        if self._versions is None or not any(logged.newest is None for logged in events):
            return events
        hot = dict.fromkeys(_object_key(logged) for logged in events if logged.newest is None)
        newest = {key: found for key in hot if (found := self._newest_of_some(key)) is not None}
        newest |= self._versions.latest([key for key in hot if key not in newest])
        return [
            logged if logged.newest is not None else logged._replace(newest=newest[_object_key(logged)])
            for logged in events
        ]

    def _newest_of_some(self, key: ObjectKey) -> str | None:
        """The greatest sequencer of a key's events for the target, if it is among the greatest of all; else None."""
        e = tables.events.c
        columns = sa.select(e.bucket, e.key, e.sequencer, self._target.label("mine"))
        some = _newest_first(columns, tables.events).where(e.key_hash == key.key_hash).limit(_NEWER_LOOKED_AT)
        rows = self._connection.execute(some).all()
        return next((row.sequencer for row in rows if row.mine and (row.bucket, row.key) == key[:2]), None)


class SettlementStore:
    """Read and settle, for the worker that holds a lease."""

    def __init__(self, database: Database, lease_ms: int) -> None:
        self.database = database
        self._lease_ms = lease_ms

    @contextmanager
    def reading(self, lease: Lease, *, newest: bool = False) -> Iterator[PartitionReader]:
        """A reader for the lease. With `newest` it is a mirror's: it knows what is newer of an event's object."""
        lease.mirror = newest
        with self.database.reading() as connection:
            yield PartitionReader(
                connection, lease, ObjectVersions(self.database, connection, lease) if newest else None
            )

    def settle(self, lease: Lease, settlement: Settlement, now: int) -> None:
        """Write a settlement and renew its partitions. Raises `LeaseLost`, and then nothing was written.

        A reason that the database refuses is replaced by `PLAIN`; the settlement is written nevertheless.
        """
        try:
            self._write(lease, settlement, now, _write_rows)
        except (sa.exc.SQLAlchemyError, *VALUE_ERRORS) as error:
            if not refuses_value(error):
                raise
            # Else the same events would be delivered, and their settlement refused, again and again.
            log.warning(
                "the outbox database refused a value, so each event is settled by itself: %s", describe_error(error)
            )
            self._write(lease, settlement, now, _write_one_by_one)
        for partition, progress in settlement.progress.items():
            if progress.position is not None:
                lease.positions[partition] = progress.position
        if settlement.replay is not None:
            replay, position = settlement.replay
            replay.position = position
            lease.replays = [other for other in lease.replays if other.position < other.until]

    def _write(self, lease: Lease, settlement: Settlement, now: int, write_rows: "_WriteRows") -> None:
        with self.database.writing() as connection:
            for partition in sorted(settlement.progress):
                self._advance(connection, lease, partition, settlement, now)
            if settlement.replay is not None:
                _advance_replay(connection, *settlement.replay, settlement.settled)
            write_rows(connection, _rows(settlement, lease.target_id))
            _unpark(connection, lease.target_id, settlement.unpark)
            restore_heads(connection, lease.target_id, settlement.objects)

    def _advance(
        self, connection: sa.Connection, lease: Lease, partition: int, settlement: Settlement, now: int
    ) -> None:
        progress = settlement.progress[partition]
        updated = connection.execute(
            _ADVANCE,
            {
                "of_target": lease.target_id,
                "of_partition": partition,
                "token": lease.token,
                "lease_ends": now + self._lease_ms,
                "to": lease.positions[partition] if progress.position is None else progress.position,
                "more_delivered": progress.delivered,
                "more_superseded": progress.superseded,
                "more_dead": progress.dead,
                "folded_before": lease.positions[partition] if lease.mirror else tables.NEVER,
                "confirmed_at": settlement.delivered_at,
            },
        )
        if updated.rowcount != 1:
            raise LeaseLost(f"partition {partition} of target {lease.target_id}")


def neither_parked_nor_dead(target_id: int) -> list[sa.ColumnElement[bool]]:
    """The condition on events that they are neither parked nor dead for a target."""
    e = tables.events.c
    return [
        ~sa.exists()
        .where(table.c.target_id == target_id, table.c.partition == e.partition, table.c.seq == e.seq)
        .correlate(tables.events)
        for table in (tables.parked, tables.dead_letters)
    ]


def selected(target_id: int, replay: ReplayPartition) -> list[sa.ColumnElement[bool]]:
    """The condition on events that a replay delivers again."""
    e = tables.events.c
    conditions = [goes_to(target_id), e.seq <= replay.until, e.received_at >= replay.since]
    conditions.append(e.received_at < replay.before)
    if replay.bucket:
        conditions.append(e.bucket == replay.bucket)
    if replay.prefix:
        conditions.append(sa.func.substr(e.key, 1, len(replay.prefix)) == replay.prefix)
    if replay.names:
        conditions.append(e.name.in_(replay.names))
    return conditions


def _select(target_id: int, *, newest: bool) -> sa.Select[Any]:
    if not newest:
        return sa.select(*_COLUMNS)
    e, other = tables.events.c, tables.events.alias()
    ordered = _newest_first(sa.select(other.c.sequencer), other).where(other.c.key_hash == e.key_hash)
    ordered = ordered.limit(1).correlate(tables.events)
    latest = ordered.where(other.c.key == e.key, other.c.bucket == e.bucket)
    latest = latest.where(other.c.targets.like(f"%,{target_id},%"))
    # Of a hot key most newer events may be of other targets: that is not looked through for each event.
    hot = sa.func.coalesce(ordered.offset(_NEWER_LOOKED_AT - 1).scalar_subquery(), "") >= e.sequencer
    # Events of a version are judged by what is known of their key, and those without sequencer by nothing.
    judged = sa.and_(e.sequencer != "", e.version == "")
    known = sa.case((~judged, ""), (hot, sa.null()), else_=latest.scalar_subquery())
    return sa.select(*_COLUMNS, known.label("newest"))


def _newest_first(query: sa.Select[Any], events: sa.FromClause) -> sa.Select[Any]:
    """An object's events by sequencer, read from the index so that a limit ends the reading.

    Left to itself MySQL sorts all events of the object, or reads the whole log, for each event.
    """
    for dialect in ("mysql", "mariadb"):
        query = query.with_hint(events, "FORCE INDEX (ix_events_key_hash_sequencer)", dialect)
    return query.order_by(events.c.key_hash.desc(), events.c.sequencer.desc())


def _ahead(target_id: int, *, newest: bool) -> sa.Select[Any]:
    e = tables.events.c
    return (
        _select(target_id, newest=newest)
        .where(e.partition == sa.bindparam("partition"), e.seq > sa.bindparam("position"), goes_to(target_id))
        .order_by(e.partition, e.seq)
        .limit(sa.bindparam("share", type_=sa.Integer))
    )


def _logged(row: Any) -> LoggedEvent:
    # Parked rows have five columns more; with `newest` there is one between.
    newest = row[13] if len(row) in (14, 19) else ""
    event = Event(*row[:8])
    if row[12]:  # rare, so the others need not pay for it
        event = event._replace(trace=row[12])
    return LoggedEvent(event, row[8], row[9], row[10], row[11], newest)


def _object_key(logged: LoggedEvent) -> ObjectKey:
    return ObjectKey(logged.event.bucket, logged.event.key, logged.partition, logged.key_hash)


def _histories(events: Iterable[LoggedEvent]) -> dict[ObjectKey, list[Entry]]:
    """The events that say what a bucket holds, by key."""
    found: dict[ObjectKey, list[Entry]] = {}
    for logged in events:
        event = logged.event
        if content_change(event.name) is not ContentChange.NOTHING:
            entry = Entry(logged.seq, event.name, event.version, event.sequencer)
            found.setdefault(_object_key(logged), []).append(entry)
    return found


def _advance_replay(connection: sa.Connection, replay: ReplayPartition, position: int, events: int) -> None:
    c = tables.cursors.c
    moved = {"position": position, "until": replay.until, "replayed": c.replayed + events}
    connection.execute(
        tables.cursors.update().where(c.replay_id == replay.replay_id, c.partition == replay.partition).values(moved)
    )


_Rows = Sequence[tuple[sa.Executable, Sequence[dict[str, Any]]]]  # statements, and the values to run each with
_WriteRows = Callable[[sa.Connection, _Rows], None]
_PARK = tables.parked.insert()
_REPARK = tables.parked.update().where(
    tables.parked.c.target_id == sa.bindparam("of_target"),
    tables.parked.c.partition == sa.bindparam("of_partition"),
    tables.parked.c.seq == sa.bindparam("of_seq"),
)
_BURY = tables.dead_letters.insert()


def _rows(settlement: Settlement, target_id: int) -> _Rows:
    """What a settlement writes with texts of a remote in it."""
    replayed = settlement.replay is not None
    return (
        (_PARK, [{"target_id": target_id, "replayed": replayed, **_values(park)} for park in settlement.park]),
        (_REPARK, [_reparked(park, target_id) for park in settlement.repark]),
        (_BURY, [{"target_id": target_id, **_values(death)} for death in settlement.deaths]),
    )


def _values(entry: ParkedRow | NewDeadLetter) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in entry.__slots__}


def _reparked(park: ParkedRow, target_id: int) -> dict[str, Any]:
    values = _values(park)
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
                connection.execute(statement, _in_plain_words(row))


def _in_plain_words(row: Mapping[str, Any]) -> dict[str, Any]:
    """The same row with reasons that every database stores."""
    history = [[row["last_tried"], PLAIN]] if row["attempts"] else []
    plain = {"history": orjson.dumps(history).decode()}
    return {**row, **plain, **({"reason": PLAIN} if "reason" in row else {})}


def _unpark(connection: sa.Connection, target_id: int, places: Sequence[LogPosition]) -> None:
    p = tables.parked.c
    for partition in {partition for partition, _ in places}:
        for some in chunks([seq for other, seq in places if other == partition]):
            connection.execute(
                tables.parked.delete().where(p.target_id == target_id, p.partition == partition, p.seq.in_(some))
            )
