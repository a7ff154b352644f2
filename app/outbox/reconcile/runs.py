"""Register runs of reconciliations and backfills, one at a time per target and bucket, and read the log for them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from app.config.arn import TargetId
from app.events.effects import ContentChange, content_change, is_concrete, names
from app.events.model import Event
from app.outbox import log_head, tables
from app.outbox.delivery.leases import replay_partitions
from app.outbox.delivery.log_ahead import goes_to
from app.outbox.delivery.logged_events import selected
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database
from app.outbox.errors import AlreadyRunning, UnknownRun
from app.outbox.log.append import Guard, chunks
from app.outbox.log.batch import key_hash
from app.outbox.markers import WHOLE_LOG
from app.outbox.reconcile.progress import Progress
from app.outbox.targets import find_target
from app.outbox.versions.rows import ObjectKey, key_state
from app.resources.drift import drift_of
from app.resources.reconciliation import COUNTS

RUNNING, CLEAN, DRIFT, REPAIRED, FAILED = "running", "clean", "drift", "repaired", "failed"
RECONCILE, SCAN = "reconcile", "scan"  # the jobs
WAITING = "waiting"  # registered by the schedule or on request, not started yet
CANCELLED = "cancelled"
# Backfills are runs too, with states of their own; the next run continues an unfinished one.
BACKFILLING, BACKFILLED, UNFINISHED = "backfilling", "backfilled", "unfinished"

_CONTENT = names(ContentChange.CREATED, ContentChange.DELETE_MARKER, ContentChange.REMOVED, ContentChange.ALL_DELETED)
_OWN_EVENTS = '%"eventSource":"bucketwire:%'  # repairs and backfills, which do not change the bucket
_DEAD_STATE = {RUNNING: FAILED, BACKFILLING: UNFINISHED}  # the state of a run after its process died
_ACTIVITY = {RUNNING: "reconciled with", BACKFILLING: "backfilled from"}

STOPPED_EARLY = "the run was stopped before it finished"
LEASE_LOST = "Another run has taken over, because this run's lease expired."


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """One run. `counts` has every member of `COUNTS`; times are milliseconds since 1970, 0 for unset.

    `repair` says whether the one who requested it wants repairs; None if the target's settings decide, or an option.
    """

    run: str
    target: TargetId
    bucket: str
    job: str
    state: str
    started_at: int
    finished_at: int
    counts: Mapping[str, int]
    report: str
    problem: str
    repair: bool | None = None
    progress: Progress | None = None  # of a run that is running, after its first renewal


@dataclass(frozen=True, slots=True)
class LogMark:
    """The log's last seq at one moment, and the keys that had undelivered events for the target then."""

    seq: int
    in_flight: frozenset[str]


class Reconciliations:
    """The runs; on all machines together, one at a time per target and bucket."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(self, target: TargetId, bucket: str, *, lease: int, state: str = RUNNING, run: str = "") -> str:
        """Start a run and return its name; it is dead `lease` ms after its last `renew`. Raises `AlreadyRunning`.

        `state` is `RUNNING` or `BACKFILLING`; the two exclude each other. `run` is the name of a waiting run that the
        schedule has registered.
        """
        r = tables.reconciliations.c
        with self._database.writing() as connection:
            now = database_now(connection)  # so that no host's own clock declares another host's run dead
            # Lock the log's head: if two runs start at once, the second one sees the first.
            log_head.lock(connection)
            same = (r.type == target.type, r.name == target.name, r.bucket == bucket, r.state.in_(_DEAD_STATE))
            for row in connection.execute(sa.select(r.started_at, r.alive_until, r.state, r.job).where(*same)).all():
                if row.alive_until > now:
                    seconds = (now - row.started_at) // 1000
                    if row.job == SCAN:
                        raise AlreadyRunning(f"{bucket} is already being scanned (started {seconds} s ago)")
                    raise AlreadyRunning(
                        f"{target} is already being {_ACTIVITY[row.state]} {bucket} (started {seconds} s ago)"
                    )
            dead = sa.case(_DEAD_STATE, value=r.state)
            connection.execute(
                tables.reconciliations.update()
                .where(*same)
                .values(state=dead, finished_at=now, problem="the process of the run died")
            )
            if run:
                waiting = tables.reconciliations.update().where(r.run == run, r.state == WAITING)
                # Never earlier than the schedule's clock, which could be before the time for which it is registered.
                started_at = sa.case((r.started_at > now, r.started_at), else_=now)
                if not connection.execute(
                    waiting.values(state=state, started_at=started_at, alive_until=now + lease)
                ).rowcount:
                    raise AlreadyRunning(f"the run {run} has already been started")
                return run
            run = uuid4().hex
            connection.execute(
                tables.reconciliations.insert().values(
                    run=run, type=target.type, name=target.name, bucket=bucket, state=state, started_at=now,
                    alive_until=now + lease, finished_at=0, report="", problem="",
                )
            )  # fmt: skip
        return run

    def renew(self, run: str, *, lease: int, progress: Progress | None = None) -> bool:
        """Renew the run's lease and record its progress; return False if it was declared dead."""
        r, text = tables.reconciliations.c, progress.to_text() if progress else None
        with self._database.writing() as connection:
            statement = tables.reconciliations.update().where(r.run == run, r.state.in_(_DEAD_STATE))
            values = {"alive_until": database_now(connection) + lease, "progress": text}
            return bool(connection.execute(statement.values(values)).rowcount)

    def last_size(self, target: TargetId, bucket: str) -> int:
        """Return how many objects and rows the last finished reconciliation of the pair compared; 0 without one."""
        r = tables.reconciliations.c
        finished = (r.job == RECONCILE, r.state.in_((CLEAN, DRIFT, REPAIRED)))
        same = (r.type == target.type, r.name == target.name, r.bucket == bucket)
        query = sa.select(tables.reconciliations).where(*same, *finished).order_by(r.id.desc()).limit(1)
        with self._database.reading() as connection:
            row = connection.execute(query).first()
        counts = counts_of(row) if row is not None else {}
        return counts.get("objects", 0) + counts.get("target_rows", 0)

    def end(self, run: str, state: str, counts: Mapping[str, int], *, report: str = "", problem: str = "") -> None:
        """Record the result of a run, unless it was cancelled."""
        r, numbers = tables.reconciliations.c, json.dumps({name: counts.get(name, 0) for name in COUNTS})
        with self._database.writing() as connection:
            now = database_now(connection)
            values = {"state": state, "finished_at": now, "report": report, "problem": problem[:2000]}
            values |= {"counts": numbers, "progress": None}
            connection.execute(tables.reconciliations.update().where(r.run == run, r.alive_until > 0).values(**values))

    def is_cancelled(self, run: str) -> bool:
        """Return whether the run was cancelled after it began."""
        r = tables.reconciliations.c
        with self._database.reading() as connection:
            cancelled = sa.select(r.id).where(r.run == run, r.alive_until == 0)
            return connection.execute(cancelled).first() is not None

    def delete_old(self, target: TargetId, bucket: str, before: int, *, job: str = RECONCILE) -> Mapping[str, str]:
        """Delete the job's runs for a target and a bucket that ended before a time (ms), except the last of each state.

        Returns the report folder of each by run; "" for none.
        """
        r = tables.reconciliations.c
        same = (r.type == target.type, r.name == target.name, r.bucket == bucket, r.job == job)
        last = sa.select(sa.func.max(r.id)).where(*same).group_by(r.state)
        with self._database.writing() as connection:
            kept = connection.execute(last).scalars().all()
            old = (*same, r.finished_at > 0, r.finished_at < before, r.id.not_in(kept))
            rows = connection.execute(sa.select(r.id, r.run, r.report).where(*old)).all()
            f = tables.findings.c
            for some in chunks(rows):
                connection.execute(tables.findings.delete().where(f.run.in_([row.run for row in some])))
                connection.execute(tables.reconciliations.delete().where(r.id.in_([row.id for row in some])))
        return {row.run: row.report for row in rows}

    def list(self, *, limit: int = 100) -> Sequence[Reconciliation]:
        """Return the last runs, newest first."""
        query = sa.select(tables.reconciliations).order_by(tables.reconciliations.c.id.desc()).limit(limit)
        with self._database.reading() as connection:
            return [_reconciliation(row) for row in connection.execute(query)]

    def get(self, run: str) -> Reconciliation:
        """Return one run. Raises `UnknownRun`."""
        query = sa.select(tables.reconciliations).where(tables.reconciliations.c.run == run)
        with self._database.reading() as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            raise UnknownRun(run)
        return _reconciliation(row)


def _reconciliation(row: Any) -> Reconciliation:
    return Reconciliation(
        row.run, TargetId(row.type, row.name), row.bucket, row.job, row.state, row.started_at, row.finished_at,
        counts_of(row), row.report, row.problem,
        {"yes": True, "no": False}.get(row.repair),
        Progress.from_text(row.progress) if row.state in _DEAD_STATE else None,
    )  # fmt: skip


def counts_of(row: Any) -> Mapping[str, int]:
    """Return the numbers of a row of the table of runs, every member of `COUNTS`; 0 until the run has ended."""
    stored = json.loads(row.counts) if row.counts else {name: getattr(row, name) for name in tables.FORMER_COUNTS}
    return {name: int(stored.get(name, 0)) for name in COUNTS}


def latest_results(connection: sa.Connection) -> Sequence[tuple[TargetId, str, int, int]]:
    """Return the last finished run of each target and bucket: when it ended (ms), and the remaining drift."""
    r = tables.reconciliations.c
    finished = sa.and_(r.job == RECONCILE, r.state.in_((CLEAN, DRIFT, REPAIRED)))
    last = sa.select(sa.func.max(r.id)).where(finished).group_by(r.type, r.name, r.bucket)
    query = sa.select(tables.reconciliations).where(r.id.in_(last)).order_by(r.type, r.name, r.bucket)
    runs = [_reconciliation(row) for row in connection.execute(query)]
    return [
        (run.target, run.bucket, run.finished_at, max(0, drift_of(run.counts) - run.counts["repaired"])) for run in runs
    ]


def log_mark(database: Database, target: TargetId, bucket: str, *, event_names: Sequence[str] = ()) -> LogMark:
    """Return the log's last seq, and the bucket's keys that are in flight to the target. Raises `UnknownTarget`.

    With `event_names`, only these events count.
    """
    c, e, p = tables.cursors.c, tables.events.c, tables.parked.c
    in_bucket = [e.bucket == bucket, e.name.in_(event_names)] if event_names else [e.bucket == bucket]
    with database.snapshot() as connection:
        target_id = find_target(connection, target).row_id
        seq = log_head.read(connection).last_seq
        parked = (
            sa.select(e.key)
            .join(tables.parked, sa.and_(p.partition == e.partition, p.seq == e.seq))
            .where(p.target_id == target_id, *in_bucket)
        )
        keys = set(connection.execute(parked).scalars())
        # One query for each cursor: MySQL and MariaDB start an index scan at a seq only if it is a constant.
        positions = sa.select(c.partition, c.position).where(c.target_id == target_id, c.replay_id == WHOLE_LOG)
        for cursor in connection.execute(positions).all():
            pending = sa.select(e.key).where(e.partition == cursor.partition, e.seq > cursor.position)
            keys.update(connection.execute(pending.where(*in_bucket, goes_to(target_id))).scalars())
        for partition in replay_partitions(connection, target_id):
            replayed = sa.select(e.key).where(
                e.partition == partition.partition,
                e.seq > partition.position,
                e.seq <= partition.until,
                *in_bucket,
                goes_to(target_id),
                *selected(partition),
            )
            keys.update(connection.execute(replayed).scalars())
    return LogMark(seq, frozenset(keys))


def keys_recorded_since(database: Database, bucket: str, *, seq: int, received_at: int | None = None) -> set[str]:
    """Return the keys of the bucket's events after `seq`; with `received_at` (ms) also of those received since."""
    e = tables.events.c
    with database.reading() as connection:
        partitions = log_head.read(connection).partitions
        # By partition, because the primary key begins with it: this reads only the new part of the log.
        later = sa.select(e.key).where(e.partition.in_(range(partitions)), e.seq > seq, e.bucket == bucket).distinct()
        keys = set(connection.execute(later).scalars())
        if received_at is not None:
            earlier = sa.select(e.key).where(e.received_at >= received_at, e.bucket == bucket).distinct()
            keys.update(connection.execute(earlier).scalars())
    return keys


def last_seq_before(database: Database, received_at: int) -> int:
    """Return the seq of the last event that was received before a time (ms), 0 for none; reads the whole log."""
    e = tables.events.c
    with database.reading() as connection:
        seq = connection.execute(sa.select(sa.func.max(e.seq)).where(e.received_at < received_at)).scalar_one()
    return int(seq or 0)


def newest_sequencers(
    database: Database, bucket: str, keys: Sequence[str], *, excluding_source: str = "", mirror: TargetId | None = None
) -> dict[str, str]:
    """Return the greatest comparable sequencer of each key in the log; keys without one are left out.

    Events of the source `excluding_source` do not count. With `mirror` it is also what this target knows of versioned
    keys, whose events may have left the log.
    """
    e, newest = tables.events.c, dict[str, str]()
    by_hash = {key_hash(bucket, key): key for key in keys}
    with database.reading() as connection:
        for hashes in chunks(list(by_hash)):
            query = sa.select(e.key, e.bucket, e.sequencer).where(e.key_hash.in_(hashes), e.sequencer != "")
            if excluding_source:
                query = query.where(e.record.not_like(f'%"eventSource":"{excluding_source}"%'))
            for row in connection.execute(query):
                if row.bucket == bucket and row.sequencer > newest.get(row.key, ""):
                    newest[row.key] = row.sequencer
        if mirror is not None:
            for key, latest in _known_latest(connection, mirror, bucket, by_hash).items():
                newest[key] = max(latest, newest.get(key, ""))
    return newest


def _known_latest(
    connection: sa.Connection, mirror: TargetId, bucket: str, by_hash: Mapping[int, str]
) -> dict[str, str]:
    """Return the greatest sequencer that a mirror knows of each versioned key, by key; `by_hash` are the keys."""
    partitions = log_head.read(connection).partitions
    objects = (ObjectKey(bucket, key, hashed % partitions, hashed) for hashed, key in by_hash.items())
    digests = {(one.partition, one.digest): one.key for one in objects}
    v, target_id = tables.object_versions.c, find_target(connection, mirror).row_id
    latest = {}
    for some in chunks(list(digests)):
        ids, within = [digest for _, digest in some], sorted({partition for partition, _ in some})
        query = sa.select(v.partition, v.id, v.state, v.trimmed)
        for row in connection.execute(query.where(v.target_id == target_id, v.partition.in_(within), v.id.in_(ids))):
            if (row.partition, row.id) in digests and (known := key_state(row).latest):
                latest[digests[row.partition, row.id]] = known
    return latest


def unchanged_since(seq: int) -> Guard:
    """Return a guard that refuses an event if its object changed after a seq; check and insert are atomic.

    Events without effect on the content do not count as a change, nor does the removal of another version, nor do
    repairs.
    """
    e = tables.events.c

    def changed(connection: sa.Connection, events: Sequence[Event]) -> set[str]:
        changes: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for hashes in chunks(list({key_hash(event.bucket, event.key) for event in events})):
            query = sa.select(e.bucket, e.key, e.name, e.version).where(e.key_hash.in_(hashes), e.seq > seq)
            for row in connection.execute(query.where(e.name.in_(_CONTENT), e.record.not_like(_OWN_EVENTS))):
                changes.setdefault((row.bucket, row.key), []).append((row.name, row.version))
        return {
            event.id
            for event in events
            if any(_changes(event, *change) for change in changes.get((event.bucket, event.key), ()))
        }

    return changed


def _changes(event: Event, name: str, version: str) -> bool:
    """Return whether a change of the object may have outdated the event."""
    is_of_another = content_change(name) is ContentChange.REMOVED and is_concrete(version) and version != event.version
    return not (is_of_another and is_concrete(event.version))
