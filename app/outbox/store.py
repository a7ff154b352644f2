"""Read what is due behind a lease's cursors, and settle it: the only code that writes delivery state.

A settlement is one transaction, guarded by the lease's token: a worker that lost its lease writes nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from app.events.mirror import Entry
from app.events.model import Event
from app.outbox import models as m
from app.outbox.append import chunks
from app.outbox.database import Database
from app.outbox.leases import Lease, LeaseLost, ReplayLane, goes_to

Place = tuple[int, int]  # lane and seq: where an event stands in the log
Object = tuple[int, int]  # lane and key_hash: an object's line


@dataclass(frozen=True, slots=True)
class Logged:
    """An event as it stands in the log, seen by one target."""

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


@dataclass(frozen=True, slots=True)
class Batch:
    """Events read behind the cursors; every lane was read up to `scanned` at least."""

    events: Sequence[Logged]
    scanned: int


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

    def lane(self, lane: int) -> Progress:
        """The lane's progress, begun where there is none yet."""
        return self.progress.setdefault(lane, Progress())


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
)


class Store:
    """Load and settle, for the worker that holds a lease."""

    def __init__(self, database: Database, lease_ms: int) -> None:
        self._database = database
        self._lease_ms = lease_ms

    def load(self, lease: Lease, limit: int, *, newest: bool = False) -> Batch:
        """The next `limit` events behind the lease's cursors, oldest first; a lane with a replay waits for it.

        `newest` also looks up, for each, the greatest sequencer the log knows of its object.
        """
        replaying = {replay.lane for replay in lease.replays}
        positions = {lane: position for lane, position in lease.positions.items() if lane not in replaying}
        if not positions:
            return Batch((), 0)
        e = m.events.c
        query = _select(lease.target_id, newest).where(goes_to(lease.target_id)).order_by(e.seq).limit(limit)
        if len(positions) == 1:
            [(lane, position)] = positions.items()
            query = query.where(e.lane == lane, e.seq > position)
        else:
            ahead = [sa.and_(e.lane == lane, e.seq > position) for lane, position in positions.items()]
            query = query.where(sa.or_(*ahead))
        with self._database.reading() as connection:
            # Read the head first: commits come in the order of seq, so up to here nothing can be missed.
            head = connection.execute(sa.select(m.log_head.c.last_seq)).scalar_one()
            rows = connection.execute(query).all()
        events = [_logged(row) for row in rows]
        return Batch(events, events[-1].seq if len(events) == limit else head)

    def load_replay(self, lease: Lease, replay: ReplayLane, limit: int, *, newest: bool = False) -> Batch:
        """The next events of a replay, which ends at `replay.until`."""
        e = m.events.c
        query = (
            _select(lease.target_id, newest)
            .where(e.lane == replay.lane, e.seq > replay.position, *selected(lease.target_id, replay))
            .order_by(e.seq)
            .limit(limit)
        )
        with self._database.reading() as connection:
            events = [_logged(row) for row in connection.execute(query)]
        return Batch(events, events[-1].seq if len(events) == limit else replay.until)

    def load_parked(self, lease: Lease, limit: int, now: int, *, newest: bool = False) -> list[Parked]:
        """Parked events that are due, each followed by those behind it of the same object, oldest first."""
        p, e = m.parked.c, m.events.c
        mine = sa.and_(p.target_id == lease.target_id, p.lane.in_(list(lease.positions)))
        with self._database.reading() as connection:
            heads = connection.execute(
                sa.select(p.lane, p.key_hash).where(mine, p.not_before <= now).order_by(p.not_before).limit(limit)
            ).all()
            if not heads:
                return []
            hashes = sorted({head.key_hash for head in heads})
            query = (
                _select(lease.target_id, newest)
                .add_columns(p.attempts, p.first_tried, p.history)
                .join_from(m.events, m.parked, sa.and_(p.lane == e.lane, p.seq == e.seq))
                .where(mine, p.key_hash.in_(hashes))
                .order_by(p.seq)
                .limit(limit)
            )
            rows = connection.execute(query).all()
        return [Parked(_logged(row), row.attempts, row.first_tried, row.history) for row in rows]

    def parked_objects(self, lease: Lease) -> set[Object]:
        """The objects of the lease's lanes that have parked events: later events of theirs go behind."""
        p = m.parked.c
        query = sa.select(p.lane, p.key_hash).where(p.target_id == lease.target_id, p.lane.in_(list(lease.positions)))
        with self._database.reading() as connection:
            return {(row.lane, row.key_hash) for row in connection.execute(query.distinct())}

    def standing(self, lease: Lease, places: Sequence[Place]) -> set[Place]:
        """Those of some events that are parked or dead for the target already, as a replay finds them."""
        found: set[Place] = set()
        with self._database.reading() as connection:
            for table in (m.parked, m.dead_letters):
                for some in chunks(places):
                    lanes, seqs = {lane for lane, _ in some}, [seq for _, seq in some]
                    query = sa.select(table.c.lane, table.c.seq).where(
                        table.c.target_id == lease.target_id, table.c.lane.in_(lanes), table.c.seq.in_(seqs)
                    )
                    found.update((row.lane, row.seq) for row in connection.execute(query))
        return found

    def histories(self, lease: Lease, hashes: Iterable[int]) -> dict[tuple[str, str], list[Entry]]:
        """What the log knows of some objects, for this target: (bucket, key) to its events in order of seq."""
        e = m.events.c
        found: dict[tuple[str, str], list[Entry]] = {}
        with self._database.reading() as connection:
            for some in chunks(sorted(set(hashes))):
                query = sa.select(e.bucket, e.key, e.seq, e.name, e.version, e.sequencer).where(
                    e.key_hash.in_(some), goes_to(lease.target_id)
                )
                for row in connection.execute(query.order_by(e.seq)):
                    entry = Entry(seq=row.seq, name=row.name, version=row.version, sequencer=row.sequencer)
                    found.setdefault((row.bucket, row.key), []).append(entry)
        return found

    def records(self, places: Iterable[Place]) -> dict[Place, str]:
        """The records of some events of the log, as JSON text."""
        e = m.events.c
        found: dict[Place, str] = {}
        with self._database.reading() as connection:
            for lane, seq in places:
                row = connection.execute(sa.select(e.record).where(e.lane == lane, e.seq == seq)).one_or_none()
                if row is not None:
                    found[lane, seq] = row.record
        return found

    def settle(self, lease: Lease, settlement: Settlement, now: int) -> None:
        """Write a settlement and renew its lanes. Raises `LeaseLost`, and then nothing was written."""
        with self._database.writing() as connection:
            for lane in sorted(settlement.progress):
                self._advance(connection, lease, lane, settlement.progress[lane], now)
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

    def _advance(self, connection: sa.Connection, lease: Lease, lane: int, progress: Progress, now: int) -> None:
        c = m.cursors.c
        changes: dict[str, Any] = {
            "leased_until": now + self._lease_ms,
            "delivered": c.delivered + progress.delivered,
            "superseded": c.superseded + progress.superseded,
            "dead": c.dead + progress.dead,
        }
        if progress.position is not None:
            changes["position"] = progress.position
        updated = connection.execute(
            m.cursors.update()
            .where(c.target_id == lease.target_id, c.lane == lane, c.replay_id == m.WHOLE_LOG)
            .where(c.lease_token == lease.token)
            .values(**changes)
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


def _select(target_id: int, newest: bool) -> sa.Select[Any]:
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


def _logged(row: Any) -> Logged:
    event = Event(row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7])
    newest = row[12] if len(row) in (13, 16) else ""
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
