"""Register runs of reconciliations, backfills and `bucketwire tables`, how far each has come, and its first findings.

A reconciliation or backfill is the only one of its target and bucket. Runs of `bucketwire tables` have neither: they
are recorded so that a failed one is seen. The tables' own state decides which of two such runs at once goes on, so
nothing here keeps one from beginning. The findings are for those who cannot read the report's folder.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import uuid4

import orjson
import sqlalchemy as sa

from app.config.arn import TargetId
from app.config.errors import BadValue
from app.outbox import log_head, tables
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database
from app.outbox.engine.many_rows import chunks, repeated_after_deadlock
from app.outbox.errors import AlreadyRunning, UnknownRun
from app.outbox.policies import RECONCILIATIONS
from app.resources.reconciliation import COUNTS, drift_of


@dataclass(frozen=True, slots=True)
class LogPosition:
    """A position in the log of an epoch: every event after `seq` was received at `at` (ms) or later."""

    seq: int
    at: int
    epoch: str

    def to_text(self) -> str:
        """Return the position as the table of runs stores it."""
        return json.dumps({"seq": self.seq, "at": self.at, "epoch": self.epoch})

    @classmethod
    def from_text(cls, text: str) -> "LogPosition":
        """Return the position of a stored text."""
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a running run is."""

    stage: str
    keys: int  # entries of the listing and rows of the target that have been read
    rate: int  # of them per second
    remaining: int | None  # seconds until all are compared; None if that is not known

    def to_text(self) -> str:
        """Return the text that is stored."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str | None) -> "Progress | None":
        """Return what a text says; None for none, and for one of a version of the code that writes something else."""
        try:
            stored = json.loads(text or "")
            return cls(stored["stage"], stored["keys"], stored["rate"], stored["remaining"])
        except (ValueError, KeyError, TypeError):
            return None


RUNNING, CLEAN, DRIFT, REPAIRED, FAILED = "running", "clean", "drift", "repaired", "failed"
RECONCILE, SCAN, TABLES = "reconcile", "scan", "tables"  # the jobs
INCREMENTAL = "incremental"  # the job of a reconciliation of the keys that the log names since the last one
BACKFILL = "backfill"  # the kind of a run whose state is a backfill's; its job is stored as `RECONCILE`
TABLES_TARGET = TargetId("tables", "_")  # stands for the target of the tables' runs, which have none
WAITING = "waiting"  # registered by the schedule or on request, not started yet
CANCELLED = "cancelled"
# Backfills are runs too, with states of their own; the next run continues an unfinished one.
BACKFILLING, BACKFILLED, UNFINISHED = "backfilling", "backfilled", "unfinished"
_OF_BACKFILLS = (BACKFILLING, BACKFILLED, UNFINISHED)
_COMPARED = (CLEAN, DRIFT, REPAIRED)
_SUCCESSFUL = (*_COMPARED, BACKFILLED)

_MAX_KEY_BYTES = 1024  # S3's limit
_DEAD_STATE = {RUNNING: FAILED, BACKFILLING: UNFINISHED}  # the state of a run after its process died
_ACTIVITY = {RUNNING: "reconciled with", BACKFILLING: "backfilled from"}

WHOLE = tables.reconciliations.c.prefix == ""  # the condition of rows of runs of a whole bucket

STOPPED_EARLY = "the run was stopped before it finished"
PROCESS_DIED = "the process of the run died"
LEASE_LOST = "Another run has taken over, because this run's lease expired."


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """One run. `counts` has every member of `COUNTS`; times are milliseconds since 1970, 0 for unset.

    `job` says what it does: `RECONCILE`, `INCREMENTAL`, `SCAN`, `BACKFILL` or `TABLES`.
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
    alive_until: int = 0  # a run that is not renewed before is dead; 0: it was cancelled
    prefix: str = ""  # it is about the keys below it only

    @property
    def place(self) -> str:
        """The bucket, or what of it the run is about."""
        return describe_place(self.bucket, self.prefix)

    def is_dead(self, now: int) -> bool:
        """Return whether its process died, which no later run has recorded yet."""
        return self.state in _DEAD_STATE and self.alive_until <= now

    @property
    def remaining_drift(self) -> int:
        """How many differences it has found and not repaired."""
        return max(0, drift_of(self.counts) - self.counts["repaired"])

    @property
    def has_failed(self) -> bool:
        """Whether it has recorded that it failed; a backfill up to its limit, or a cancelled one, has not."""
        return self.state == FAILED or (self.state == UNFINISHED and bool(self.problem) and self.alive_until > 0)


class Reconciliations:
    """The runs; on all machines together, one at a time per target and bucket."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @repeated_after_deadlock
    def begin(
        self, target: TargetId, bucket: str, *, lease: int, state: str = RUNNING, run: str = "", prefix: str = "",
        job: str = RECONCILE,
    ) -> str:  # fmt: skip
        """Start a run and return its name; it is dead `lease` ms after its last `renew`. Raises `AlreadyRunning`.

        `state` is `RUNNING` or `BACKFILLING`; the two exclude each other. `run` is the name of a waiting run that the
        schedule has registered, with its `job`. With `prefix` it is about the keys below it only.
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
                tables.reconciliations.update().where(*same).values(state=dead, finished_at=now, problem=PROCESS_DIED)
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
                    alive_until=now + lease, finished_at=0, report="", problem="", prefix=prefix, job=job,
                )
            )  # fmt: skip
        return run

    @repeated_after_deadlock
    def renew(self, run: str, *, lease: int, progress: Progress | None = None) -> bool:
        """Renew the run's lease and record its progress; return False if it was declared dead."""
        r, text = tables.reconciliations.c, progress.to_text() if progress else None
        with self._database.writing() as connection:
            statement = tables.reconciliations.update().where(r.run == run, r.state.in_(_DEAD_STATE))
            values = {"alive_until": database_now(connection) + lease, "progress": text}
            return bool(connection.execute(statement.values(values)).rowcount)

    def last_size(self, target: TargetId, bucket: str) -> int:
        """Return how many objects and rows the last reconciliation of the whole pair compared; 0 without one."""
        r = tables.reconciliations.c
        finished = (r.job == RECONCILE, r.state.in_(_COMPARED), WHOLE)
        same = (r.type == target.type, r.name == target.name, r.bucket == bucket)
        query = sa.select(tables.reconciliations).where(*same, *finished).order_by(r.id.desc()).limit(1)
        with self._database.reading() as connection:
            row = connection.execute(query).first()
        counts = counts_of(row) if row is not None else {}
        return counts.get("objects", 0) + counts.get("target_rows", 0)

    def last_position(self, target: TargetId, bucket: str) -> LogPosition | None:
        """Return from where in the log an incremental run of the pair goes on; None if no run has got there."""
        r = tables.reconciliations.c
        same = (r.type == target.type, r.name == target.name, r.bucket == bucket, r.job.in_((RECONCILE, INCREMENTAL)))
        query = sa.select(r.position).where(*same, r.state.in_(_COMPARED), r.position.is_not(None), WHOLE)
        with self._database.reading() as connection:
            text = connection.execute(query.order_by(r.finished_at.desc(), r.id.desc()).limit(1)).scalar_one_or_none()
        return LogPosition.from_text(text) if text else None

    @repeated_after_deadlock
    def become_whole(self, run: str) -> None:
        """Record that an incremental run compares the whole bucket."""
        with self._database.writing() as connection:
            here = tables.reconciliations.update().where(tables.reconciliations.c.run == run)
            connection.execute(here.values(job=RECONCILE))

    @repeated_after_deadlock
    def end(
        self, run: str, state: str, counts: Mapping[str, int], *, report: str = "", problem: str = "",
        position: LogPosition | None = None,
    ) -> None:  # fmt: skip
        """Record the result of a run, unless it was cancelled, and from where an incremental run goes on."""
        r, numbers = tables.reconciliations.c, json.dumps({name: counts.get(name, 0) for name in COUNTS})
        with self._database.writing() as connection:
            now = database_now(connection)
            values = {"state": state, "finished_at": now, "report": report, "problem": problem[:2000]}
            values |= {"counts": numbers, "progress": None, "position": position.to_text() if position else None}
            connection.execute(tables.reconciliations.update().where(r.run == run, r.alive_until > 0).values(**values))

    def is_cancelled(self, run: str) -> bool:
        """Return whether the run was cancelled after it began."""
        r = tables.reconciliations.c
        with self._database.reading() as connection:
            cancelled = sa.select(r.id).where(r.run == run, r.alive_until == 0)
            return connection.execute(cancelled).first() is not None

    @repeated_after_deadlock
    def delete_old(self, target: TargetId, bucket: str, before: int, *, job: str = RECONCILE) -> Mapping[str, str]:
        """Delete the job's runs for a target and a bucket that ended before a time (ms), except the last of each state.

        Returns the report folder of each by run; "" for none.
        """
        r = tables.reconciliations.c
        same = (r.type == target.type, r.name == target.name, r.bucket == bucket, r.job == job)
        last = sa.select(sa.func.max(r.id)).where(*same, WHOLE).group_by(r.state)
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
        """Return the last runs with a target and a bucket, newest first."""
        r = tables.reconciliations.c
        query = sa.select(tables.reconciliations).where(r.job != TABLES).order_by(r.id.desc()).limit(limit)
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
        row.run, TargetId(row.type, row.name), row.bucket, BACKFILL if row.state in _OF_BACKFILLS else row.job,
        row.state, row.started_at, row.finished_at,
        counts_of(row), row.report, row.problem,
        {"yes": True, "no": False}.get(row.repair),
        Progress.from_text(row.progress) if row.state in _DEAD_STATE else None,
        row.alive_until,
        row.prefix,
    )  # fmt: skip


def check_prefix(prefix: str) -> str:
    """Return a prefix of keys as it is. Raises `BadValue` for one with which no object's key can begin."""
    try:
        size = len(prefix.encode())
    except UnicodeEncodeError:
        raise BadValue("has bytes that are not UTF-8", "write the prefix as UTF-8") from None
    if size > _MAX_KEY_BYTES:
        raise BadValue(f"has {size} bytes", f"give at most {_MAX_KEY_BYTES}, as keys have")
    if "\0" in prefix:
        raise BadValue("contains U+0000", "remove it: no key that a target stores has it")
    return prefix


def describe_place(bucket: str, prefix: str) -> str:
    """Return what a run is about in one text: no bucket's name has a slash."""
    return f"{bucket}/{prefix}" if prefix else bucket


def counts_of(row: Any) -> Mapping[str, int]:
    """Return the numbers of a row of the table of runs, every member of `COUNTS`; 0 until the run has ended."""
    stored = json.loads(row.counts) if row.counts else {name: getattr(row, name) for name in tables.FORMER_COUNTS}
    return {name: int(stored.get(name, 0)) for name in COUNTS}


def latest_results(connection: sa.Connection) -> Sequence[tuple[TargetId, str, int, int]]:
    """Return the last finished run of each target and whole bucket: when it ended (ms), and the remaining drift."""
    r = tables.reconciliations.c
    finished = sa.and_(r.job == RECONCILE, r.state.in_(_COMPARED), WHOLE)
    last = sa.select(sa.func.max(r.id)).where(finished).group_by(r.type, r.name, r.bucket)
    query = sa.select(tables.reconciliations).where(r.id.in_(last)).order_by(r.type, r.name, r.bucket)
    runs = [_reconciliation(row) for row in connection.execute(query)]
    return [(run.target, run.bucket, run.finished_at, run.remaining_drift) for run in runs]


def _ended(now: int) -> sa.ColumnElement[bool]:
    r = tables.reconciliations.c
    return sa.and_(r.state != WAITING, sa.or_(r.finished_at != 0, r.alive_until <= now))


def newest_runs(
    connection: sa.Connection, now: int, *, successful: bool = False
) -> Mapping[tuple[str, TargetId, str], Reconciliation]:
    """Return the run of each kind, target and bucket that began last; of those that succeeded, if it says so.

    One that still runs at `now` (ms) says nothing yet: what failed before it stays failed. Runs of a part of a bucket
    are told apart: in place of the bucket's name they have what they are about (`Reconciliation.place`).
    """
    r = tables.reconciliations.c
    states = r.state.in_(_SUCCESSFUL) if successful else _ended(now)
    kind = sa.case((r.state.in_(_OF_BACKFILLS), BACKFILL), else_=r.job)
    # By the time of the start: a run that waited may have begun after one with a later row.
    order = sa.func.row_number().over(partition_by=(kind, r.type, r.name, r.bucket, r.prefix),
                                      order_by=(r.started_at.desc(), r.id.desc()))  # fmt: skip
    numbered = sa.select(r.id, order.label("place")).where(states).subquery()
    newest = sa.select(numbered.c.id).where(numbered.c.place == 1)
    runs = [
        _reconciliation(row) for row in connection.execute(sa.select(tables.reconciliations).where(r.id.in_(newest)))
    ]
    return {(run.job, run.target, run.place): run for run in runs}


_R = tables.reconciliations.c


@repeated_after_deadlock
def begin_tables(database: Database, *, lease: int) -> str:
    """Record that an update of the tables begins, and return the run's name; it is dead `lease` ms after its renewal.

    What has not recorded its end counts as dead.
    """
    with database.writing() as connection:
        now = database_now(connection)
        running = tables.reconciliations.update().where(_R.job == TABLES, _R.state == RUNNING)
        connection.execute(running.values(state=FAILED, finished_at=now, problem=PROCESS_DIED))
        return _insert_tables(connection, RUNNING, now, alive_until=now + lease)


def end_tables(database: Database, run: str, *, problem: str = "") -> None:
    """Record the end of an update, with its problem if it failed; of the earlier ones the last of each state stays."""
    runs = Reconciliations(database)
    runs.end(run, FAILED if problem else CLEAN, {}, problem=problem)
    with database.reading() as connection:
        now = database_now(connection)
    runs.delete_old(TABLES_TARGET, "", now, job=TABLES)


@repeated_after_deadlock
def fail_tables(database: Database, problem: str, since: int) -> None:
    """Record that an update that was started at `since` (ms) has failed, unless it has recorded its own end."""
    with database.writing() as connection:
        now = database_now(connection)
        failed = {"state": FAILED, "finished_at": now, "problem": problem[:2000]}
        own = connection.execute(sa.select(_R.state).where(_R.job == TABLES, _R.started_at >= since)).scalars().all()
        if not own:
            run = _insert_tables(connection, RUNNING, now, alive_until=now)
            connection.execute(tables.reconciliations.update().where(_R.run == run).values(**failed))
        elif RUNNING in own:
            running = tables.reconciliations.update().where(_R.job == TABLES, _R.state == RUNNING)
            connection.execute(running.values(**failed))


def _insert_tables(connection: sa.Connection, state: str, now: int, *, alive_until: int) -> str:
    run = uuid4().hex
    connection.execute(
        tables.reconciliations.insert().values(
            run=run, job=TABLES, type=TABLES_TARGET.type, name=TABLES_TARGET.name, bucket="", state=state,
            started_at=now, alive_until=alive_until, finished_at=0, report="", problem="",
        )
    )  # fmt: skip
    return run


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference. `facts` has the key, the object's properties and the row's (`row_…`), as in the report."""

    number: int
    kind: str
    facts: Mapping[str, Any]


@repeated_after_deadlock
def store_findings(database: Database, run: str, findings: Iterable[Mapping[str, Any]]) -> int:
    """Store the findings of a run in place of those that it has; return how many.

    They are at most `RECONCILIATIONS.max_findings`. Each has a `kind` and its other facts, which JSON can express.
    """
    rows = [
        # ASCII, so that every database takes whatever a key is.
        {"run": run, "number": number, "kind": facts["kind"], "facts": json.dumps(dict(facts))}
        for number, facts in zip(range(1, RECONCILIATIONS.max_findings + 1), findings, strict=False)
    ]
    with database.writing() as connection:
        connection.execute(tables.findings.delete().where(tables.findings.c.run == run))
        for some in chunks(rows):
            connection.execute(tables.findings.insert(), some)
    return len(rows)


def read_findings(
    database: Database, run: str, *, kind: str = "", limit: int = 100, after: int = 0
) -> Sequence[Finding]:
    """Return the first `limit` findings of a run with a number above `after`, those of a kind if one is given."""
    f = tables.findings.c
    query = sa.select(tables.findings).where(f.run == run, f.number > after).order_by(f.number).limit(limit)
    if kind:
        query = query.where(f.kind == kind)
    with database.reading() as connection:
        return [Finding(row.number, row.kind, orjson.loads(row.facts)) for row in connection.execute(query)]
