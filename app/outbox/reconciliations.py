"""Reconciliations: who compares a target with a bucket just now, what was found, and what is on its way meanwhile."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from uuid import uuid4

import sqlalchemy as sa

from app.config.arn import TargetId
from app.events.model import Event
from app.outbox import models as m
from app.outbox.addressed import AddressedLog
from app.outbox.append import chunks, key_hash
from app.outbox.books import snapshot
from app.outbox.database import Database, now_ms
from app.outbox.leases import goes_to, replay_lanes
from app.outbox.registry import UnknownTarget
from app.outbox.store import selected

COUNTS = ("objects", "held", "missing", "stale", "orphaned", "malformed", "outside", "in_flight", "bad", "repaired")
RUNNING, CLEAN, DRIFT, REPAIRED, FAILED = "running", "clean", "drift", "repaired", "failed"


class AlreadyRunning(Exception):
    """Somebody else reconciles this target with this bucket; the message says since when."""


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """One run. `counts` has every member of `COUNTS`; times are milliseconds since 1970, 0 for not yet."""

    run: str
    target: TargetId
    bucket: str
    state: str
    started_at: int
    finished_at: int
    counts: Mapping[str, int]
    report: str
    problem: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment of the log: its last seq, and the keys of which the target has not got every event yet."""

    seq: int
    moving: frozenset[str]


class Reconciliations:
    """The runs, and one at a time for each target and bucket, on whatever machine."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(self, target: TargetId, bucket: str, *, lease: int) -> str:
        """Register a run that counts as dead `lease` ms after its last `renew`; its name. Raises `AlreadyRunning`."""
        r, now, run = m.reconciliations.c, now_ms(), uuid4().hex
        with self._database.writing() as connection:
            # The head's lock: of two that begin at once the second sees the first.
            connection.execute(m.log_head.update().values(last_seq=m.log_head.c.last_seq))
            same = (r.type == target.type, r.name == target.name, r.bucket == bucket, r.state == RUNNING)
            other = connection.execute(sa.select(r.started_at, r.alive_until).where(*same)).all()
            if alive := [row.started_at for row in other if row.alive_until > now]:
                seconds = (now - max(alive)) // 1000
                raise AlreadyRunning(f"{target} is being reconciled with {bucket} since {seconds} s ago")
            connection.execute(
                m.reconciliations.update()
                .where(*same)
                .values(state=FAILED, finished_at=now, problem="the process that ran it is gone")
            )
            connection.execute(
                m.reconciliations.insert().values(
                    run=run, type=target.type, name=target.name, bucket=bucket, state=RUNNING, started_at=now,
                    alive_until=now + lease, finished_at=0, report="", problem="", **dict.fromkeys(COUNTS, 0),
                )
            )  # fmt: skip
        return run

    def renew(self, run: str, *, lease: int) -> bool:
        """Say that the run is alive; False if it was declared dead."""
        r = m.reconciliations.c
        with self._database.writing() as connection:
            statement = m.reconciliations.update().where(r.run == run, r.state == RUNNING)
            return bool(connection.execute(statement.values(alive_until=now_ms() + lease)).rowcount)

    def end(self, run: str, state: str, counts: Mapping[str, int], *, report: str = "", problem: str = "") -> None:
        """Write what a run came to."""
        found = {name: counts.get(name, 0) for name in COUNTS}
        values = {"state": state, "finished_at": now_ms(), "report": report, "problem": problem[:2000], **found}
        with self._database.writing() as connection:
            connection.execute(m.reconciliations.update().where(m.reconciliations.c.run == run).values(**values))

    def list(self, *, limit: int = 100) -> Sequence[Reconciliation]:
        """The last runs, newest first."""
        query = sa.select(m.reconciliations).order_by(m.reconciliations.c.id.desc()).limit(limit)
        with self._database.reading() as connection:
            return [
                Reconciliation(
                    row.run, TargetId(row.type, row.name), row.bucket, row.state, row.started_at, row.finished_at,
                    {name: getattr(row, name) for name in COUNTS}, row.report, row.problem,
                )
                for row in connection.execute(query)
            ]  # fmt: skip


def latest(connection: sa.Connection) -> Sequence[tuple[TargetId, str, int, int]]:
    """Of each target and bucket the last run that came to an end: when (ms), and how many entries it left in drift."""
    r = m.reconciliations.c
    over = r.state.in_((CLEAN, DRIFT, REPAIRED))
    last = sa.select(sa.func.max(r.id)).where(over).group_by(r.type, r.name, r.bucket)
    query = sa.select(m.reconciliations).where(r.id.in_(last)).order_by(r.type, r.name, r.bucket)
    return [
        (
            TargetId(row.type, row.name),
            row.bucket,
            row.finished_at,
            max(0, row.missing + row.stale + row.orphaned + row.malformed - row.repaired),
        )
        for row in connection.execute(query)
    ]


def mark(database: Database, target: TargetId, bucket: str) -> Mark:
    """Where the log stands now, and what of the bucket is still on its way to the target. Raises `UnknownTarget`."""
    t, c, e, p, head = m.targets.c, m.cursors.c, m.events.c, m.parked.c, m.log_head.c
    with snapshot(database) as connection:
        query = sa.select(t.id).where(t.type == target.type, t.name == target.name)
        target_id = connection.execute(query).scalar_one_or_none()
        if target_id is None:
            raise UnknownTarget(target)
        seq = int(connection.execute(sa.select(head.last_seq)).scalar_one())
        behind = (
            sa.select(e.key)
            .join(m.cursors, sa.and_(c.lane == e.lane, e.seq > c.position))
            .where(c.target_id == target_id, c.replay_id == m.WHOLE_LOG, e.bucket == bucket, goes_to(target_id))
        )
        parked = (
            sa.select(e.key)
            .join(m.parked, sa.and_(p.lane == e.lane, p.seq == e.seq))
            .where(p.target_id == target_id, e.bucket == bucket)
        )
        moving = set(connection.execute(behind).scalars()) | set(connection.execute(parked).scalars())
        for lane in replay_lanes(connection, target_id):
            again = sa.select(e.key).where(
                e.lane == lane.lane, e.seq > lane.position, e.bucket == bucket, *selected(target_id, lane)
            )
            moving.update(connection.execute(again).scalars())
    return Mark(seq, frozenset(moving))


def recorded_since(database: Database, bucket: str, *, seq: int, received_at: int | None = None) -> set[str]:
    """The keys of the bucket's events recorded after `seq`; with `received_at` (ms) also of those received since."""
    e = m.events.c
    with database.reading() as connection:
        lanes = connection.execute(sa.select(m.log_head.c.lanes)).scalar_one()
        # By lane, as the log's key begins with it: what is read is the new part of the log and no more.
        later = sa.select(e.key).where(e.lane.in_(range(lanes)), e.seq > seq, e.bucket == bucket).distinct()
        found = set(connection.execute(later).scalars())
        if received_at is not None:
            earlier = sa.select(e.key).where(e.received_at >= received_at, e.bucket == bucket).distinct()
            found.update(connection.execute(earlier).scalars())
    return found


def newest_sequencers(database: Database, bucket: str, keys: Sequence[str]) -> dict[str, str]:
    """The greatest comparable sequencer that the log has of each key; keys of which it has none are left out."""
    e, found = m.events.c, dict[str, str]()
    wanted = {key_hash(bucket, key): key for key in keys}
    with database.reading() as connection:
        for some in chunks(list(wanted)):
            query = sa.select(e.key, e.bucket, e.sequencer).where(e.key_hash.in_(some), e.sequencer != "")
            for row in connection.execute(query):
                if row.bucket == bucket and row.sequencer > found.get(row.key, ""):
                    found[row.key] = row.sequencer
    return found


class Unless(AddressedLog):
    """Events for one target, each recorded only if its object had none after a seq: nothing can come between."""

    def __init__(self, database: Database, target: TargetId, after: int) -> None:
        super().__init__(database, target)
        self._after = after
        self.overtaken = 0  # events that the last append left out

    def _chosen(
        self, connection: sa.Connection, requests: Sequence[Sequence[Event]], known: set[str]
    ) -> Sequence[Sequence[Event]]:
        fresh = [event for events in requests for event in events if event.id not in known]
        later = set(self._later(connection, fresh))
        self.overtaken = sum((event.bucket, event.key) in later for event in fresh)
        return [
            [event for event in events if event.id in known or (event.bucket, event.key) not in later]
            for events in requests
        ]

    def _later(self, connection: sa.Connection, events: Iterable[Event]) -> Iterator[tuple[str, str]]:
        e = m.events.c
        for some in chunks(list({key_hash(event.bucket, event.key) for event in events})):
            query = sa.select(e.bucket, e.key).where(e.key_hash.in_(some), e.seq > self._after)
            yield from ((row.bucket, row.key) for row in connection.execute(query))
