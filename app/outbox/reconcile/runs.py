"""Reconciliations: who compares a target with a bucket just now, what was found, and what is on its way meanwhile."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

import sqlalchemy as sa

from app.config.arn import TargetId
from app.events.effects import ContentChange, content_change, is_concrete, names
from app.events.model import Event
from app.outbox import tables
from app.outbox.delivery.counters import snapshot
from app.outbox.delivery.leases import replay_partitions
from app.outbox.delivery.log_ahead import goes_to
from app.outbox.delivery.logged_events import selected
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database
from app.outbox.log.addressed import AddressedLog
from app.outbox.log.append import chunks, key_hash
from app.outbox.registry import UnknownTarget

COUNTS = ("objects", "held", "missing", "stale", "orphaned", "malformed", "outside", "in_flight", "bad", "repaired")
RUNNING, CLEAN, DRIFT, REPAIRED, FAILED = "running", "clean", "drift", "repaired", "failed"
WAITING = "waiting"  # registered by the schedule, and not begun
# Backfills are runs too, and are told apart by their states; one that is unfinished goes on with the next.
BACKFILLING, BACKFILLED, UNFINISHED = "backfilling", "backfilled", "unfinished"

_CONTENT = names(ContentChange.CREATED, ContentChange.DELETE_MARKER, ContentChange.REMOVED, ContentChange.ALL_DELETED)
_OURS = '%"eventSource":"bucketwire:%'  # of repairs and backfills, which tell nothing that the bucket did
_GONE = {RUNNING: FAILED, BACKFILLING: UNFINISHED}  # what a run becomes whose process is gone
_AT_WORK = {RUNNING: "reconciled with", BACKFILLING: "backfilled from"}


class AlreadyRunning(Exception):
    """Somebody else reconciles or backfills this target with this bucket; the message says since when."""


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
class LogMark:
    """A moment of the log: its last seq, and the keys of which the target has not got every event yet."""

    seq: int
    moving: frozenset[str]


class Reconciliations:
    """The runs, and one at a time for each target and bucket, on whatever machine."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(self, target: TargetId, bucket: str, *, lease: int, state: str = RUNNING, run: str = "") -> str:
        """Register a run that counts as dead `lease` ms after its last `renew`; its name. Raises `AlreadyRunning`.

        Its `state` is `RUNNING` or `BACKFILLING`; neither begins while the other is at work. `run` is one that the
        schedule has registered, and that nobody has begun.
        """
        r = tables.reconciliations.c
        with self._database.writing() as connection:
            now = database_now(connection)  # of two hosts neither may take the other's run for dead
            # The head's lock: of two that begin at once the second sees the first.
            connection.execute(tables.log_head.update().values(last_seq=tables.log_head.c.last_seq))
            same = (r.type == target.type, r.name == target.name, r.bucket == bucket, r.state.in_(_GONE))
            other = connection.execute(sa.select(r.started_at, r.alive_until, r.state).where(*same)).all()
            for row in other:
                if row.alive_until > now:
                    seconds = (now - row.started_at) // 1000
                    raise AlreadyRunning(f"{target} is being {_AT_WORK[row.state]} {bucket} since {seconds} s ago")
            gone = sa.case(_GONE, value=r.state)
            connection.execute(
                tables.reconciliations.update()
                .where(*same)
                .values(state=gone, finished_at=now, problem="the process that ran it is gone")
            )
            if run:
                waits = tables.reconciliations.update().where(r.run == run, r.state == WAITING)
                # Never earlier than the schedule's clock has it: that could be before the moment that it is for.
                began = sa.case((r.started_at > now, r.started_at), else_=now)
                if not connection.execute(
                    waits.values(state=state, started_at=began, alive_until=now + lease)
                ).rowcount:
                    raise AlreadyRunning(f"the run {run} has been begun before")
                return run
            run = uuid4().hex
            connection.execute(
                tables.reconciliations.insert().values(
                    run=run, type=target.type, name=target.name, bucket=bucket, state=state, started_at=now,
                    alive_until=now + lease, finished_at=0, report="", problem="", **dict.fromkeys(COUNTS, 0),
                )
            )  # fmt: skip
        return run

    def renew(self, run: str, *, lease: int) -> bool:
        """Say that the run is alive; False if it was declared dead."""
        r = tables.reconciliations.c
        with self._database.writing() as connection:
            statement = tables.reconciliations.update().where(r.run == run, r.state.in_(_GONE))
            return bool(connection.execute(statement.values(alive_until=database_now(connection) + lease)).rowcount)

    def end(self, run: str, state: str, counts: Mapping[str, int], *, report: str = "", problem: str = "") -> None:
        """Write what a run came to."""
        found = {name: counts.get(name, 0) for name in COUNTS}
        with self._database.writing() as connection:
            now = database_now(connection)
            values = {"state": state, "finished_at": now, "report": report, "problem": problem[:2000], **found}
            connection.execute(
                tables.reconciliations.update().where(tables.reconciliations.c.run == run).values(**values)
            )

    def forget(self, target: TargetId, bucket: str, before: int) -> Mapping[str, str]:
        """Remove the runs of a target and a bucket that ended before a moment (ms), but for the last of each state.

        Says where the report of each is, by run; "" for none.
        """
        r = tables.reconciliations.c
        same = (r.type == target.type, r.name == target.name, r.bucket == bucket)
        last = sa.select(sa.func.max(r.id)).where(*same).group_by(r.state)
        with self._database.writing() as connection:
            kept = connection.execute(last).scalars().all()
            old = (*same, r.finished_at > 0, r.finished_at < before, r.id.not_in(kept))
            found = connection.execute(sa.select(r.id, r.run, r.report).where(*old)).all()
            connection.execute(tables.reconciliations.delete().where(r.id.in_([row.id for row in found])))
        return {row.run: row.report for row in found}

    def list(self, *, limit: int = 100) -> Sequence[Reconciliation]:
        """The last runs, newest first."""
        query = sa.select(tables.reconciliations).order_by(tables.reconciliations.c.id.desc()).limit(limit)
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
    r = tables.reconciliations.c
    over = r.state.in_((CLEAN, DRIFT, REPAIRED))
    last = sa.select(sa.func.max(r.id)).where(over).group_by(r.type, r.name, r.bucket)
    query = sa.select(tables.reconciliations).where(r.id.in_(last)).order_by(r.type, r.name, r.bucket)
    return [
        (
            TargetId(row.type, row.name),
            row.bucket,
            row.finished_at,
            max(0, row.missing + row.stale + row.orphaned + row.malformed - row.repaired),
        )
        for row in connection.execute(query)
    ]


def mark(database: Database, target: TargetId, bucket: str, *, only: Sequence[str] = ()) -> LogMark:
    """Where the log stands now, and what of the bucket is still on its way to the target. Raises `UnknownTarget`.

    With names of events as `only`, nothing else counts as being on its way.
    """
    t, c, e, p, head = tables.targets.c, tables.cursors.c, tables.events.c, tables.parked.c, tables.log_head.c
    ours = [e.bucket == bucket, e.name.in_(only)] if only else [e.bucket == bucket]
    with snapshot(database) as connection:
        query = sa.select(t.id).where(t.type == target.type, t.name == target.name)
        target_id = connection.execute(query).scalar_one_or_none()
        if target_id is None:
            raise UnknownTarget(target)
        seq = int(connection.execute(sa.select(head.last_seq)).scalar_one())
        behind = (
            sa.select(e.key)
            .join(tables.cursors, sa.and_(c.partition == e.partition, e.seq > c.position))
            .where(c.target_id == target_id, c.replay_id == tables.WHOLE_LOG, *ours, goes_to(target_id))
        )
        parked = (
            sa.select(e.key)
            .join(tables.parked, sa.and_(p.partition == e.partition, p.seq == e.seq))
            .where(p.target_id == target_id, *ours)
        )
        moving = set(connection.execute(behind).scalars()) | set(connection.execute(parked).scalars())
        for partition in replay_partitions(connection, target_id):
            again = sa.select(e.key).where(
                e.partition == partition.partition, e.seq > partition.position, *ours, *selected(target_id, partition)
            )
            moving.update(connection.execute(again).scalars())
    return LogMark(seq, frozenset(moving))


def recorded_since(database: Database, bucket: str, *, seq: int, received_at: int | None = None) -> set[str]:
    """The keys of the bucket's events recorded after `seq`; with `received_at` (ms) also of those received since."""
    e = tables.events.c
    with database.reading() as connection:
        partitions = connection.execute(sa.select(tables.log_head.c.partitions)).scalar_one()
        # By partition, as the log's key begins with it: what is read is the new part of the log and no more.
        later = sa.select(e.key).where(e.partition.in_(range(partitions)), e.seq > seq, e.bucket == bucket).distinct()
        found = set(connection.execute(later).scalars())
        if received_at is not None:
            earlier = sa.select(e.key).where(e.received_at >= received_at, e.bucket == bucket).distinct()
            found.update(connection.execute(earlier).scalars())
    return found


def last_before(database: Database, received_at: int) -> int:
    """The number of the log's last event that was received before that moment (ms), 0 for none; reads the whole log."""
    e = tables.events.c
    with database.reading() as connection:
        found = connection.execute(sa.select(sa.func.max(e.seq)).where(e.received_at < received_at)).scalar_one()
    return int(found or 0)


def newest_sequencers(database: Database, bucket: str, keys: Sequence[str], *, but_of: str = "") -> dict[str, str]:
    """The greatest comparable sequencer that the log has of each key; keys of which it has none are left out.

    Events of the source `but_of` do not count.
    """
    e, found = tables.events.c, dict[str, str]()
    wanted = {key_hash(bucket, key): key for key in keys}
    with database.reading() as connection:
        for some in chunks(list(wanted)):
            query = sa.select(e.key, e.bucket, e.sequencer).where(e.key_hash.in_(some), e.sequencer != "")
            if but_of:
                query = query.where(e.record.not_like(f'%"eventSource":"{but_of}"%'))
            for row in connection.execute(query):
                if row.bucket == bucket and row.sequencer > found.get(row.key, ""):
                    found[row.key] = row.sequencer
    return found


class UnlessChanged(AddressedLog):
    """Events for one target, each recorded only if its object did not change after a seq: nothing can come between.

    What says nothing of the object's content does not count, nor the removal of another version, nor other repairs.
    Where the target has no room for all of a request, nothing of it is recorded (`QueueFull`), whatever `queue_full`
    says: an event that the log knows, but not for the target, could not be sent again.
    """

    def __init__(self, database: Database, target: TargetId, after: int) -> None:
        super().__init__(database, target)
        self._after = after
        self._left_out: set[str] = set()

    @property
    def overtaken(self) -> int:
        """How many events it has left out."""
        return len(self._left_out)

    def _take(self, connection: sa.Connection, wanted: int) -> tuple[int, int]:
        taken = super()._take(connection, wanted)
        self._routing = replace(self._routing, rejecting=frozenset(self._routing.ids))
        return taken

    def _chosen(
        self, connection: sa.Connection, requests: Sequence[Sequence[Event]], known: set[str]
    ) -> Sequence[Sequence[Event]]:
        fresh = [event for events in requests for event in events if event.id not in known]
        later = set(self._later(connection, fresh))
        self._left_out |= later
        return [[event for event in events if event.id not in later] for events in requests]

    def _later(self, connection: sa.Connection, events: Sequence[Event]) -> Iterator[str]:
        """The ids of the events whose objects changed since."""
        e = tables.events.c
        changes: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for some in chunks(list({key_hash(event.bucket, event.key) for event in events})):
            query = sa.select(e.bucket, e.key, e.name, e.version).where(e.key_hash.in_(some), e.seq > self._after)
            for row in connection.execute(query.where(e.name.in_(_CONTENT), e.record.not_like(_OURS))):
                changes.setdefault((row.bucket, row.key), []).append((row.name, row.version))
        for event in events:
            if any(_changes(event, *change) for change in changes.get((event.bucket, event.key), ())):
                yield event.id


def _changes(event: Event, name: str, version: str) -> bool:
    """Whether a change of its object leaves what the event says in doubt."""
    is_of_another = content_change(name) is ContentChange.REMOVED and is_concrete(version) and version != event.version
    return not (is_of_another and is_concrete(event.version))
