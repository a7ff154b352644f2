"""Schedule reconciliations and scans: register each run once when it is due; it waits until a worker starts it.

A target's settings `reconcile`, `reconcile_incremental` and `scan` are cron expressions, and its rules name the
buckets; those of a scan are the buckets whose scanner events the target gets. A run of a whole bucket counts as the
incremental one, too. An event may name any bucket: only valid bucket names are scheduled, and for a rule of every
bucket at most `RECONCILIATIONS.max_buckets`. Registering is idempotent: any number of processes may check at any time,
because the table of runs decides. A registered run waits until the previous run has finished; `Reconciliations.begin`
decides which process starts it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import uuid4

import orjson
import sqlalchemy as sa

from app.config.arn import TargetId
from app.config.fields.times import last_moment
from app.events.buckets import is_bucket_name
from app.events.names import EVERY, expand
from app.outbox import log_head, tables
from app.outbox.buckets import usable_buckets
from app.outbox.column_values import NEVER
from app.outbox.engine.database import Database
from app.outbox.engine.locks import repeated_after_deadlock
from app.outbox.policies import RECONCILIATIONS
from app.outbox.reconcile.runs import (
    BACKFILLED,
    BACKFILLING,
    CLEAN,
    DRIFT,
    FAILED,
    INCREMENTAL,
    RECONCILE,
    REPAIRED,
    RUNNING,
    SCAN,
    UNFINISHED,
    WAITING,
    WHOLE,
)
from app.outbox.rules import read_rules
from app.rules.model import EVERY_BUCKET, Rule, event_names

_Pair = tuple[str, TargetId, str]  # the job, its target and its bucket
SCHEDULES = {RECONCILE: "reconcile", INCREMENTAL: "reconcile_incremental", SCAN: "scan"}  # the settings of the jobs
_SCANNER = expand("s3:Scanner:*") | {EVERY}


@dataclass(frozen=True, slots=True)
class WaitingRun:
    """A scheduled or requested run that has not started. `first`: no run of its target and bucket has ever finished."""

    run: str
    target: TargetId
    bucket: str
    registered_at: int  # ms since 1970
    first: bool
    job: str = RECONCILE
    repair: bool | None = None  # whether it repairs; None: the target's settings decide
    prefix: str = ""  # only the keys below it


def describe_unscheduled(number: int) -> str:
    """Describe that a number of buckets of a target are not scheduled, and what to do."""
    return (
        f"{number} of the buckets in its events are not reconciled or scanned by schedule: their names are invalid, or "
        f"there are more than {RECONCILIATIONS.max_buckets}; add a rule that names the bucket to schedule it"
    )


def is_due(expression: str, last_start: int, now: int) -> bool:
    """Return whether a run is due if the last one was started at `last_start` (ms; 0 for never)."""
    scheduled_at = last_moment(expression, now)
    return last_start < scheduled_at and now - scheduled_at <= RECONCILIATIONS.max_delay_ms


class Schedule:
    """Scheduled runs: those that are due and those that wait."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def exists(self) -> bool:
        """Return whether any target has a schedule, or a run waits that was requested."""
        r = tables.reconciliations.c
        waiting = sa.select(r.id).where(r.state == WAITING).limit(1)
        with self._database.reading() as connection:
            return bool(_expressions(connection)) or connection.execute(waiting).first() is not None

    @repeated_after_deadlock
    def register(self, now: int) -> int:
        """Register the runs that are due at `now` (ms) and neither wait nor run already; return their number.

        A requested run that only compares is no reason to leave one out.
        """
        with self._database.reading() as connection:
            expressions = _expressions(connection)
            if not expressions:
                return 0
            pairs = list(_pairs(connection, expressions)[0])
            if not any(_due(connection, pairs, now)):
                return 0
        with self._database.writing() as connection:
            # Lock the log's head: if two processes check at once, the second one sees the first one's runs.
            log_head.lock(connection)
            rows = [_row(*due, now) for due in _due(connection, pairs, now)]
            if rows:
                connection.execute(tables.reconciliations.insert(), rows)
            return len(rows)

    def unscheduled_buckets(self) -> dict[TargetId, int]:
        """Return how many buckets of each scheduled target are left out for their names or their number."""
        with self._database.reading() as connection:
            return _pairs(connection, _expressions(connection))[1]

    def waiting(self) -> Sequence[WaitingRun]:
        """Return the waiting runs, oldest first."""
        r = tables.reconciliations.c
        with self._database.reading() as connection:
            rows = connection.execute(sa.select(tables.reconciliations).where(r.state == WAITING).order_by(r.id)).all()
            return [
                WaitingRun(
                    row.run,
                    TargetId(row.type, row.name),
                    row.bucket,
                    row.started_at,
                    not _has_finished(connection, row),
                    row.job,
                    {"yes": True, "no": False}.get(row.repair),
                    row.prefix,
                )
                for row in rows
            ]

    @repeated_after_deadlock
    def fail(self, run: str, problem: str, now: int) -> bool:
        """Record why a run without a process failed; return False if the run has recorded its own end."""
        r = tables.reconciliations.c
        with self._database.writing() as connection:
            unfinished = tables.reconciliations.update().where(r.run == run, r.state.in_((WAITING, RUNNING)))
            values = {"state": FAILED, "finished_at": now, "problem": problem[:2000]}
            return bool(connection.execute(unfinished.values(**values)).rowcount)


def scheduled_pairs(connection: sa.Connection) -> list[tuple[str, TargetId, str, str]]:
    """Return each job that a target schedules, with each of its buckets and its schedule."""
    expressions = _expressions(connection)
    return _pairs(connection, expressions)[0] if expressions else []


def _pairs(
    connection: sa.Connection, expressions: Mapping[tuple[str, TargetId], str]
) -> tuple[list[tuple[str, TargetId, str, str]], dict[TargetId, int]]:
    """Return each job of a target with each of its buckets and its schedule, and the buckets left out by target."""
    named = [
        (job, rule.target, rule.bucket)
        for job in SCHEDULES
        for rule in sorted({_Named.of(stored.rule) for stored in read_rules(connection)})
        if (job, rule.target) in expressions and (job != SCAN or rule.scanner)
    ]
    every = {(job, target) for job, target, bucket in named if bucket == EVERY_BUCKET}
    usable, others = usable_buckets(connection, RECONCILIATIONS.max_buckets) if every else ([], 0)
    scheduled = dict.fromkeys((job, target, bucket) for job, target in sorted(every) for bucket in usable)
    unscheduled = {target: others for _, target in every} if others else {}
    for job, target, bucket in dict.fromkeys(named):
        if is_bucket_name(bucket):
            scheduled[job, target, bucket] = None
        elif (job, target) not in every:
            unscheduled[target] = unscheduled.get(target, 0) + 1
    return [(job, target, bucket, expressions[job, target]) for job, target, bucket in scheduled], unscheduled


class _Named(NamedTuple):
    """What a rule says about schedules."""

    target: TargetId
    bucket: str
    scanner: bool  # it sends scanner events

    @classmethod
    def of(cls, rule: Rule) -> "_Named":
        return cls(rule.target, rule.bucket, any(event_names(name) & _SCANNER for name in rule.events))


def _expressions(connection: sa.Connection) -> dict[tuple[str, TargetId], str]:
    t = tables.targets.c
    has_schedule = sa.or_(*(t.settings.contains(f'"{setting}"') for setting in SCHEDULES.values()))
    expressions = {}
    for row in connection.execute(
        sa.select(t.type, t.name, t.settings).where(t.enabled, t.problem == "", has_schedule)
    ):
        settings = orjson.loads(row.settings)
        for job, setting in SCHEDULES.items():
            if expression := settings.get(setting):
                expressions[job, TargetId(row.type, row.name)] = str(expression)
    return expressions


def _due(connection: sa.Connection, pairs: Iterable[tuple[str, TargetId, str, str]], now: int) -> Iterator[_Pair]:
    r = tables.reconciliations.c
    last_starts: dict[_Pair, int] = {}
    # A requested run that only compares neither counts as the scheduled one, which may repair, nor delays it. One of a
    # part of the bucket does not count, but only one runs at a time.
    counts = r.repair != "no"
    # Earlier starts are before every time at which a run can be due, and later ones are of a clock that was ahead.
    recent = (
        counts,
        WHOLE,
        r.started_at.between(now - RECONCILIATIONS.max_delay_ms, now + RECONCILIATIONS.max_delay_ms),
        r.state.not_in((BACKFILLING, BACKFILLED, UNFINISHED)),
    )
    last = sa.select(r.job, r.type, r.name, r.bucket, sa.func.max(r.started_at).label("at")).where(*recent)
    for row in connection.execute(last.group_by(r.job, r.type, r.name, r.bucket)):
        last_starts[row.job, TargetId(row.type, row.name), row.bucket] = row.at
    active = sa.select(r.job, r.type, r.name, r.bucket).where(counts, r.finished_at == 0, r.alive_until > now)
    busy = {(row.job, TargetId(row.type, row.name), row.bucket) for row in connection.execute(active)}
    for job, target, bucket, expression in pairs:
        # The whole bucket comes first.
        due, covering = (job, target, bucket), (RECONCILE if job == INCREMENTAL else job, target, bucket)
        last_start = max(last_starts.get(due, 0), last_starts.get(covering, 0))
        if not busy & {due, covering} and is_due(expression, last_start, now):
            last_starts[due] = now
            yield due


def _row(job: str, target: TargetId, bucket: str, now: int) -> dict[str, object]:
    return {
        "run": uuid4().hex, "job": job, "type": target.type, "name": target.name, "bucket": bucket, "state": WAITING,
        "started_at": now, "alive_until": NEVER, "finished_at": 0, "report": "", "problem": "",
    }  # fmt: skip


def _has_finished(connection: sa.Connection, row: sa.Row[tuple[object, ...]]) -> bool:
    """Return whether a reconciliation of the same target and bucket has ever finished."""
    r = tables.reconciliations.c
    same = (r.type == row.type, r.name == row.name, r.bucket == row.bucket, r.job == RECONCILE, WHOLE)
    query = sa.select(r.id).where(*same, r.state.in_((CLEAN, DRIFT, REPAIRED))).limit(1)
    return connection.execute(query).first() is not None
