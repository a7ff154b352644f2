"""Read what is due behind a lease's cursors, and settle it: the only code that writes delivery state.

A settlement is one transaction, guarded by the lease's token: a worker that lost its lease writes nothing.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sqlalchemy as sa

from app.events.mirror import Entry
from app.events.model import Event
from app.outbox import models as m
from app.outbox.append import chunks
from app.outbox.database import Database
from app.outbox.leases import Lease, LeaseLost, ReplayLane, goes_to

Place = tuple[int, int]  # lane and seq: where an event stands in the log
Object = tuple[int, int]  # lane and key_hash: an object's line


class Logged(NamedTuple):
    """An event as it stands in the log, seen by one target. (A tuple: made for every delivery of every event.)"""

    event: Event
    lane: int
    seq: int
    key_hash: int
    received_at: int
    newest: str = ""  # greatest comparable sequencer known of its object for this target, where that was asked

    @property
    def object(self) -> Object:
        """The line it stands in: an object's events go one after the other."""
        return self.lane, self.key_hash


@dataclass(frozen=True, slots=True)
class Parked:
    """A parked event and what was tried with it."""

    logged: Logged
    attempts: int
    first_tried: int
    history: str
    last_tried: int = 0
    refused_at: int = 0  # when the target last answered it "unavailable", 0 if it did not


@dataclass(frozen=True, slots=True)
class Refusals:
    """What the outbox knows of a target's refusals: when it last delivered, and which parked events it refused since.

    `lanes` are the lanes of those events; `of_others` says that there are such events besides those asked about.
    """

    delivered_at: int
    lanes: frozenset[int] = frozenset()
    of_others: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """Events read behind the cursors, and up to which seq each lane was read."""

    events: Sequence[Logged]
    scanned: Mapping[int, int]


@dataclass(slots=True)
class Progress:
    """What one settlement moves in one lane."""

    position: int | None = None
    delivered: int = 0
    superseded: int = 0
    dead: int = 0


@dataclass(frozen=True, slots=True)
class Park:
    """A row of `parked` to write, new or changed."""

    lane: int
    seq: int
    key_hash: int
    not_before: int
    attempts: int = 0
    first_tried: int = 0
    last_tried: int = 0
    history: str = "[]"
    refused_at: int = 0


@dataclass(frozen=True, slots=True)
class Death:
    """A dead letter to write."""

    lane: int
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
    replay: tuple[ReplayLane, int] | None = None  # this batch came from a replay, which is then up to here
    park: list[Park] = field(default_factory=list)
    repark: list[Park] = field(default_factory=list)
    unpark: list[Place] = field(default_factory=list)
    deaths: list[Death] = field(default_factory=list)
    moved_on: set[Object] = field(default_factory=set)  # objects whose next parked event may be at the head now
    delivered_at: int = 0  # when the target confirmed an event of this batch (ms), 0 if it confirmed none

    def lane(self, lane: int) -> Progress:
        """The lane's progress, begun where there is none yet."""
        return self.progress.setdefault(lane, Progress())


_HEAD = sa.select(m.log_head.c.last_seq)
_COLUMNS = (
    m.events.c.id,
    m.events.c.name,
    m.events.c.bucket,
    m.events.c.key,
    m.events.c.version,
    m.events.c.sequencer,
    m.events.c.time,
    m.events.c.record,
    m.events.c.lane,
    m.events.c.seq,
    m.events.c.key_hash,
    m.events.c.received_at,
    m.events.c.trace,
)


_C = m.cursors.c
_ADVANCE = (
    m.cursors.update()
    .where(_C.target_id == sa.bindparam("of_target"), _C.lane == sa.bindparam("of_lane"))
    .where(_C.replay_id == m.WHOLE_LOG, _C.lease_token == sa.bindparam("token"))
    .values(
        position=sa.bindparam("to"),
        leased_until=sa.bindparam("lease_ends"),
        delivered=_C.delivered + sa.bindparam("more_delivered"),
        superseded=_C.superseded + sa.bindparam("more_superseded"),
        dead=_C.dead + sa.bindparam("more_dead"),
        delivered_at=sa.case(
            (sa.bindparam("confirmed_at", type_=sa.BigInteger) > 0, sa.bindparam("confirmed_at")),
            else_=_C.delivered_at,
        ),
    )
)


class Reader:
    """What a lease's holder reads, over one connection for as long as it works."""

    def __init__(self, connection: sa.Connection, lease: Lease, *, newest: bool) -> None:
        self._connection = connection
        self._lease = lease
        self._newest = newest
        self._target = goes_to(lease.target_id)
        # Built once: putting a statement together takes longer than the database takes to answer it.
        self._ahead = _ahead(lease.target_id, newest=newest)
        p = m.parked.c
        self._mine = sa.and_(p.target_id == lease.target_id, p.lane.in_(list(lease.positions)))
        self._heads = sa.select(p.lane, p.key_hash, p.not_before).where(self._mine, p.not_before < m.NEVER)

    def load(self, limit: int) -> Batch:
        """The next `limit` events behind the lease's cursors, per lane oldest first; a replaying lane waits."""
        replaying = {replay.lane for replay in self._lease.replays}
        positions = {lane: position for lane, position in self._lease.positions.items() if lane not in replaying}
        if not positions:
            return Batch((), {})
        share = max(1, limit // len(positions))
        # Read the head first: commits come in the order of seq, so up to here nothing can be missed.
        head = self._connection.execute(_HEAD).scalar_one()
        # One SELECT for each lane, so that each walks its index in order and stops at its share.
        events = [
            _logged(row)
            for lane, position in positions.items()
            for row in self._connection.execute(self._ahead, {"lane": lane, "position": position, "share": share})
        ]
        scanned = dict.fromkeys(positions, head)
        for lane, count in Counter(logged.lane for logged in events).items():
            last = max(logged.seq for logged in events if logged.lane == lane)
            # What was recorded since the head was read may be in the batch too.
            scanned[lane] = last if count == share else max(head, last)
        return Batch(events, scanned)

    def load_replay(self, replay: ReplayLane, limit: int) -> Batch:
        """The next events of a replay, which ends at `replay.until`."""
        query = self._ahead.where(*selected(self._lease.target_id, replay))
        place = {"lane": replay.lane, "position": replay.position, "share": limit}
        events = [_logged(row) for row in self._connection.execute(query, place)]
        return Batch(events, {replay.lane: events[-1].seq if len(events) == limit else replay.until})

    def parked_heads(self) -> dict[Object, int]:
        """The objects of the lease's lanes that have parked events, and when the first of each is due (ms)."""
        return {(row.lane, row.key_hash): row.not_before for row in self._connection.execute(self._heads)}

    def load_parked(self, objects: Iterable[Object], limit: int) -> list[Parked]:
        """Parked events of some objects, per object oldest first."""
        p, e = m.parked.c, m.events.c
        query = (
            _select(self._lease.target_id, newest=self._newest)
            .add_columns(p.attempts, p.first_tried, p.last_tried, p.history, p.refused_at)
            .join_from(m.events, m.parked, sa.and_(p.lane == e.lane, p.seq == e.seq))
            .where(self._mine, p.key_hash.in_(sorted({hashed for _, hashed in objects})))
            .order_by(p.seq)
            .limit(limit)
        )
        return [
            Parked(_logged(row), row.attempts, row.first_tried, row.history, row.last_tried, row.refused_at or 0)
            for row in self._connection.execute(query)
        ]

    def refusals(self, asked: Set[Place] = frozenset()) -> Refusals:
        """When the target last delivered, in any lane, and which parked events but those `asked` it refused since."""
        c, p = m.cursors.c, m.parked.c
        mine = self._lease.target_id
        delivered_at = self._connection.execute(
            sa.select(sa.func.max(c.delivered_at)).where(c.target_id == mine)
        ).scalar_one()
        query = sa.select(p.lane, p.seq).where(p.target_id == mine, p.refused_at > (delivered_at or 0))
        places = {(row.lane, row.seq) for row in self._connection.execute(query)}
        return Refusals(delivered_at or 0, frozenset(lane for lane, _ in places), not places <= asked)

    def standing(self, places: Sequence[Place]) -> set[Place]:
        """Those of some events that are parked or dead for the target already, as a replay finds them."""
        found: set[Place] = set()
        for table in (m.parked, m.dead_letters):
            for some in chunks(places):
                lanes, seqs = {lane for lane, _ in some}, [seq for _, seq in some]
                query = sa.select(table.c.lane, table.c.seq).where(
                    table.c.target_id == self._lease.target_id, table.c.lane.in_(lanes), table.c.seq.in_(seqs)
                )
                found.update((row.lane, row.seq) for row in self._connection.execute(query))
        return found

    def histories(self, hashes: Iterable[int]) -> dict[tuple[str, str], list[Entry]]:
        """What the log knows of some objects, for this target: (bucket, key) to its events in order of seq."""
        e = m.events.c
        found: dict[tuple[str, str], list[Entry]] = {}
        for some in chunks(sorted(set(hashes))):
            query = sa.select(e.bucket, e.key, e.seq, e.name, e.version, e.sequencer).where(
                e.key_hash.in_(some), self._target
            )
            for row in self._connection.execute(query.order_by(e.seq)):
                entry = Entry(seq=row.seq, name=row.name, version=row.version, sequencer=row.sequencer)
                found.setdefault((row.bucket, row.key), []).append(entry)
        return found

    def records(self, places: Iterable[Place]) -> dict[Place, str]:
        """The records of some events of the log, as JSON text."""
        e = m.events.c
        found: dict[Place, str] = {}
        for lane, seq in places:
            row = self._connection.execute(sa.select(e.record).where(e.lane == lane, e.seq == seq)).one_or_none()
            if row is not None:
                found[lane, seq] = row.record
        return found


class Store:
    """Read and settle, for the worker that holds a lease."""

    def __init__(self, database: Database, lease_ms: int) -> None:
        self._database = database
        self._lease_ms = lease_ms

    @contextmanager
    def reading(self, lease: Lease, *, newest: bool = False) -> Iterator[Reader]:
        """A reader for the lease. `newest` looks up, for each event, the greatest sequencer known of its object."""
        with self._database.reading() as connection:
            yield Reader(connection, lease, newest=newest)

    def settle(self, lease: Lease, settlement: Settlement, now: int) -> None:
        """Write a settlement and renew its lanes. Raises `LeaseLost`, and then nothing was written."""
        with self._database.writing() as connection:
            for lane in sorted(settlement.progress):
                self._advance(connection, lease, lane, settlement, now)
            if settlement.replay is not None:
                _advance_replay(connection, *settlement.replay)
            _write_parked(connection, lease.target_id, settlement)
            if settlement.deaths:
                connection.execute(
                    m.dead_letters.insert(), [_row(death, lease.target_id) for death in settlement.deaths]
                )
        for lane, progress in settlement.progress.items():
            if progress.position is not None:
                lease.positions[lane] = progress.position
        if settlement.replay is not None:
            replay, position = settlement.replay
            replay.position = position
            lease.replays = [other for other in lease.replays if other.position < other.until]

    def _advance(self, connection: sa.Connection, lease: Lease, lane: int, settlement: Settlement, now: int) -> None:
        progress = settlement.progress[lane]
        updated = connection.execute(
            _ADVANCE,
            {
                "of_target": lease.target_id,
                "of_lane": lane,
                "token": lease.token,
                "lease_ends": now + self._lease_ms,
                "to": lease.positions[lane] if progress.position is None else progress.position,
                "more_delivered": progress.delivered,
                "more_superseded": progress.superseded,
                "more_dead": progress.dead,
                "confirmed_at": settlement.delivered_at,
            },
        )
        if updated.rowcount != 1:
            raise LeaseLost(f"lane {lane} of target {lease.target_id}")


def selected(target_id: int, replay: ReplayLane) -> list[sa.ColumnElement[bool]]:
    """The condition on events that a replay delivers again."""
    e = m.events.c
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
    e, other = m.events.c, m.events.alias()
    latest = (
        sa.select(other.c.sequencer)
        .where(other.c.key_hash == e.key_hash, other.c.key == e.key, other.c.bucket == e.bucket)
        .where(other.c.targets.like(f"%,{target_id},%"))
        .order_by(other.c.sequencer.desc())
        .limit(1)
        .correlate(m.events)
        .scalar_subquery()
    )
    return sa.select(*_COLUMNS, latest.label("newest"))


def _ahead(target_id: int, *, newest: bool) -> sa.Select[Any]:
    e = m.events.c
    return (
        _select(target_id, newest=newest)
        .where(e.lane == sa.bindparam("lane"), e.seq > sa.bindparam("position"), goes_to(target_id))
        .order_by(e.lane, e.seq)
        .limit(sa.bindparam("share", type_=sa.Integer))
    )


def _logged(row: Any) -> Logged:
    # Parked rows have five columns more; with `newest` there is one between.
    newest = row[13] if len(row) in (14, 19) else ""
    event = Event(*row[:8])
    if row[12]:  # rare, so the others need not pay for it
        event = event._replace(trace=row[12])
    return Logged(event, row[8], row[9], row[10], row[11], newest or "")


def _row(death: Death, target_id: int) -> dict[str, Any]:
    return {name: getattr(death, name) for name in Death.__slots__} | {"target_id": target_id}


def _parked_row(park: Park, target_id: int) -> dict[str, Any]:
    return {name: getattr(park, name) for name in Park.__slots__} | {"target_id": target_id}


def _advance_replay(connection: sa.Connection, replay: ReplayLane, position: int) -> None:
    c = m.cursors.c
    connection.execute(
        m.cursors.update().where(c.replay_id == replay.replay_id, c.lane == replay.lane).values(position=position)
    )


def _write_parked(connection: sa.Connection, target_id: int, settlement: Settlement) -> None:
    p = m.parked.c
    if settlement.park:
        connection.execute(m.parked.insert(), [_parked_row(park, target_id) for park in settlement.park])
    for park in settlement.repark:
        row = _parked_row(park, target_id)
        connection.execute(
            m.parked.update().where(p.target_id == target_id, p.lane == park.lane, p.seq == park.seq).values(**row)
        )
    for lane in {lane for lane, _ in settlement.unpark}:
        for some in chunks([seq for other, seq in settlement.unpark if other == lane]):
            connection.execute(m.parked.delete().where(p.target_id == target_id, p.lane == lane, p.seq.in_(some)))
    for lane, hashed in sorted(settlement.moved_on):
        first = connection.execute(
            sa.select(sa.func.min(p.seq)).where(p.target_id == target_id, p.lane == lane, p.key_hash == hashed)
        ).scalar_one()
        if first is not None:
            connection.execute(
                m.parked.update()
                .where(p.target_id == target_id, p.lane == lane, p.seq == first, p.not_before == m.NEVER)
                .values(not_before=0)
            )
