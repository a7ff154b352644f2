"""Register reconciliations and scans when they are due or requested, and find what failed and what is overdue.

A target's settings `reconcile`, `reconcile_incremental` and `scan` are cron expressions, and its rules name the
buckets; those of a scan are the buckets whose scanner events the target gets. A run of a whole bucket counts as the
incremental one, too. An event may name any bucket: only valid bucket names are scheduled, and for a rule of every
bucket at most `RECONCILIATIONS.max_buckets`. Registering is idempotent: any number of processes may check at any time,
because the table of runs decides. A registered run waits for a Spark worker until the previous run has finished;
`Reconciliations.begin` decides which process starts it.

Whether a run has failed is decided by the newest of its kind, target and bucket that has ended. A run is overdue if its
schedule's due time has passed and none has begun. That needs neither beat nor a Spark worker: whoever reads the table
of runs sees it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import uuid4

import orjson
import sqlalchemy as sa

from app.config.arn import TargetId
from app.config.errors import BadValue
from app.config.fields.times import last_moment, next_moment
from app.config.targets.base import NamespaceSettings
from app.events.buckets import is_bucket_name
from app.events.names import EVERY, expand
from app.outbox import audit, log_head, processes, tables
from app.outbox.buckets import usable_buckets
from app.outbox.column_values import NEVER
from app.outbox.declared import read_rules
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database
from app.outbox.engine.many_rows import repeated_after_deadlock
from app.outbox.errors import AlreadyRunning, NothingToRepair, UnknownRun, UnseenBucket
from app.outbox.policies import HEARTBEATS, RECONCILIATIONS
from app.outbox.reconcile.runs import (
    BACKFILLED,
    BACKFILLING,
    CANCELLED,
    CLEAN,
    DRIFT,
    FAILED,
    INCREMENTAL,
    PROCESS_DIED,
    RECONCILE,
    REPAIRED,
    RUNNING,
    SCAN,
    TABLES,
    TABLES_TARGET,
    UNFINISHED,
    WAITING,
    WHOLE,
    Reconciliation,
    Reconciliations,
    check_prefix,
    newest_runs,
)
from app.outbox.registry import Registry
from app.rules.model import EVERY_BUCKET, Rule, event_names

_RunKey = tuple[str, TargetId, str]  # the job, its target, and its bucket or what else it is about
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


def _due(connection: sa.Connection, pairs: Iterable[tuple[str, TargetId, str, str]], now: int) -> Iterator[_RunKey]:
    r = tables.reconciliations.c
    last_starts: dict[_RunKey, int] = {}
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


_MAX_COMPARED = 1_000  # names with which an unknown one is compared
CANCELLED_BY_REQUEST = "cancelled on request"
_CANCELLED_STATE = {WAITING: CANCELLED, RUNNING: CANCELLED, BACKFILLING: UNFINISHED}


class RunRequests:
    """Requests for runs of reconciliations."""

    def __init__(self, database: Database, registry: Registry) -> None:
        self._database = database
        self._registry = registry
        self._runs = Reconciliations(database)

    def start(
        self,
        target: TargetId,
        bucket: str,
        *,
        repair: bool,
        prefix: str = "",
        incremental: bool = False,
        unknown_bucket: bool = False,
    ) -> Reconciliation:
        """Register a run that starts when a Spark worker is free; with `repair` it repairs the drift that it finds.

        With `prefix` it compares the keys below it only, with `incremental` those that the log names since the last.

        Raises `AlreadyRunning` if one waits or runs, `UnknownTarget`, `BadSettings`, `BadValue` if the target has
        nothing to compare, no bucket can have this name, or both parts are asked for, and `UnseenBucket` without
        `unknown_bucket` for a bucket that nothing has named: its rows would all be orphaned, or there are none.
        """
        settings = self._registry.settings(self._registry.target(target))
        if not isinstance(settings, NamespaceSettings) or settings.format != "namespace":
            raise BadValue(f"{target} has no rows to compare", "name a target with format=namespace")
        if not is_bucket_name(bucket):
            raise BadValue(f"{bucket[:300]!r} is not the name of a bucket", "name a bucket that the target mirrors")
        try:
            check_prefix(prefix)
        except BadValue as error:
            raise BadValue(f"the prefix {error.problem}", error.hint) from None
        if prefix and incremental:
            raise BadValue("an incremental run has no prefix", "give one of them")
        if not unknown_bucket:
            self._check_known(bucket)
        return self._register(target, bucket, {"repair": repair}, prefix, INCREMENTAL if incremental else RECONCILE)

    def _check_known(self, bucket: str) -> None:
        """Raise `UnseenBucket` unless something has named the bucket."""
        seen = tables.buckets.c.name
        names = (seen, tables.rules.c.bucket, tables.bucket_settings.c.name, tables.reconciliations.c.bucket)
        with self._database.reading() as connection:
            known = sa.or_(*(sa.exists().where(name == bucket) for name in names))
            if not connection.execute(sa.select(known)).scalar_one():
                raise UnseenBucket(bucket, connection.execute(sa.select(seen).limit(_MAX_COMPARED)).scalars().all())

    def repair(self, run: str) -> Reconciliation:
        """Register a run that compares again what a run compared, and repairs the drift that there is then.

        Raises `UnknownRun`, `NothingToRepair`, and what `start` raises.
        """
        ended = self._runs.get(run)
        if ended.state != DRIFT or ended.job not in (RECONCILE, INCREMENTAL):
            raise NothingToRepair(f"the run {run} is {ended.state}: only a reconciliation that found drift is repaired")
        self._registry.settings(self._registry.target(ended.target))
        details = {"repair": True, "approved": run}
        return self._register(ended.target, ended.bucket, details, ended.prefix, ended.job)

    @repeated_after_deadlock
    def cancel(self, run: str) -> Reconciliation:
        """Cancel a run that waits or runs; its process ends within about 15 s. Others stay as they are.

        Raises `UnknownRun`.
        """
        r = tables.reconciliations.c
        with self._database.writing() as connection:
            state = connection.execute(sa.select(r.state).where(r.run == run).with_for_update()).scalar_one_or_none()
            if state is None:
                raise UnknownRun(run)
            if state in _CANCELLED_STATE:
                values = {"state": _CANCELLED_STATE[state], "problem": CANCELLED_BY_REQUEST, "alive_until": 0}
                here = tables.reconciliations.update().where(r.run == run)
                connection.execute(here.values(finished_at=database_now(connection), **values))
                audit.record(connection, "reconciliation.cancel", f"reconciliation:{run}")
        return self._runs.get(run)

    @repeated_after_deadlock
    def _register(
        self, target: TargetId, bucket: str, details: dict[str, object], prefix: str, job: str
    ) -> Reconciliation:
        r = tables.reconciliations.c
        run = uuid4().hex
        with self._database.writing() as connection:
            log_head.lock(connection)  # if two are requested at once, the second one sees the first
            now = database_now(connection)
            same = (r.type == target.type, r.name == target.name, r.bucket == bucket)
            is_comparison = r.job.in_((RECONCILE, INCREMENTAL))
            active = sa.select(r.state).where(*same, is_comparison, r.finished_at == 0, r.alive_until > now).limit(1)
            state = connection.execute(active).scalar_one_or_none()
            if state is not None:
                idle = state == WAITING and not processes.has_spark_worker(connection, now)
                cure = "start a Spark worker, as none is there, or cancel it" if idle else "cancel it first, or wait"
                raise AlreadyRunning(f"a run of {target} with {bucket} is {state} already; {cure}")
            connection.execute(
                tables.reconciliations.insert().values(
                    run=run, type=target.type, name=target.name, bucket=bucket, state=WAITING, started_at=now,
                    alive_until=NEVER, finished_at=0, report="", problem="",
                    repair="yes" if details["repair"] else "no", prefix=prefix, job=job,
                )
            )  # fmt: skip
            facts = {"target": str(target), "bucket": bucket, **({"prefix": prefix} if prefix else {}), **details}
            facts |= {"incremental": True} if job == INCREMENTAL else {}
            audit.record(connection, "reconciliation.start", f"reconciliation:{run}", facts)
        return self._runs.get(run)


_CHANGES = 100  # of a target's settings, among which the last one of its schedule is looked for


@dataclass(frozen=True, slots=True)
class RunState:
    """What the newest ended run of a kind, target and bucket says; times are milliseconds since 1970, 0 for none.

    `problem` is why it failed, "" unless it did. `good` is the newest run that succeeded. `due_at` is since when a run
    is overdue, by `schedule`; `waits` says that it is registered. One that waits while others run is not overdue.
    """

    kind: str
    target: TargetId
    bucket: str
    failed_at: int = 0
    problem: str = ""
    good: Reconciliation | None = None
    due_at: int = 0
    schedule: str = ""
    waits: bool = False


def read_run_states(connection: sa.Connection, now: int, *, tables_schedule: str, oldest: int) -> Sequence[RunState]:
    """Return the states of the runs of the targets that exist and of the tables, at `now` (ms).

    A run that ended before `oldest` (ms) is forgotten, unless it is scheduled.
    """
    newest, good = newest_runs(connection, now), newest_runs(connection, now, successful=True)
    schedules = _schedules(connection, tables_schedule)
    t = tables.targets.c
    rows = connection.execute(sa.select(t.type, t.name, t.created_at))
    created = {TargetId(row.type, row.name): row.created_at for row in rows}
    begun, busy, waiting = _starts(connection, now)
    has_worker = processes.has_spark_worker(connection, now)
    grace = RECONCILIATIONS.max_wait_ms if has_worker else HEARTBEATS.silence_ms
    states = []
    for key in sorted(schedules.keys() | newest.keys(), key=lambda key: (str(key[1]), key[2], key[0])):
        kind, target, bucket = key
        run = newest.get(key)
        if target not in created and kind != TABLES:
            continue
        if key not in schedules and (run is None or run.started_at < oldest):
            continue
        failed_at, problem = (0, "") if run is None else _failure(run, now)
        due_at = 0
        waits_for_others = key in waiting and bool(busy)
        covering = (RECONCILE, target, bucket) if kind == INCREMENTAL else key  # a run that counts as one of these
        if key in schedules and not busy & {key, covering} and not waits_for_others:
            since = max(begun.get(key, 0), begun.get(covering, 0)) or _configured_at(connection, key, created)
            due_at = _due_after(schedules[key], since, now - grace)
            if due_at:  # by a schedule that may have been another one then
                due_at = _due_after(schedules[key], max(since, _changed_at(connection, key)), now - grace)
        states.append(
            RunState(
                kind, target, bucket, failed_at, problem, good.get(key), due_at, schedules.get(key, ""), key in waiting
            )
        )
    return states


def _schedules(connection: sa.Connection, tables_schedule: str) -> Mapping[_RunKey, str]:
    schedules = {(job, target, bucket): expression for job, target, bucket, expression in scheduled_pairs(connection)}
    return {**schedules, **({(TABLES, TABLES_TARGET, ""): tables_schedule} if tables_schedule else {})}


def _starts(connection: sa.Connection, now: int) -> tuple[dict[_RunKey, int], set[_RunKey], set[_RunKey]]:
    """Return when the last run began that counts for the schedule, which runs are active, and which wait."""
    r = tables.reconciliations.c
    pair = (r.job, r.type, r.name, r.bucket)
    counts = sa.and_(WHOLE, r.repair != "no", r.state.not_in(("backfilling", "backfilled", "unfinished")))
    began = sa.select(*pair, sa.func.max(r.started_at).label("at")).where(counts, r.state != WAITING).group_by(*pair)
    begun = {(row.job, TargetId(row.type, row.name), row.bucket): row.at for row in connection.execute(began)}
    active = sa.select(*pair, r.state).where(counts, r.finished_at == 0, r.alive_until > now)
    rows = [((row.job, TargetId(row.type, row.name), row.bucket), row.state) for row in connection.execute(active)]
    return begun, {key for key, state in rows if state != WAITING}, {key for key, state in rows if state == WAITING}


def _failure(run: Reconciliation, now: int) -> tuple[int, str]:
    if run.is_dead(now):
        return run.alive_until, PROCESS_DIED
    return (run.finished_at, run.problem) if run.has_failed else (0, "")


def _configured_at(connection: sa.Connection, key: _RunKey, created: Mapping[TargetId, int]) -> int:
    """Return since when a schedule can have been there of which no run has begun."""
    kind, target, bucket = key
    if kind == TABLES:
        return min(created.values(), default=0)
    b, a = tables.buckets.c, tables.audit.c
    seen = connection.execute(sa.select(b.created_at).where(b.name == bucket)).scalar_one_or_none() or 0
    added = sa.select(sa.func.max(a.at)).where(a.resource == f"bucket:{bucket}", a.action == "rule.add")
    return max(created[target], seen, connection.execute(added).scalar_one() or 0)


def _due_after(expression: str, since: int, before: int) -> int:
    """Return the first due time after `since`; 0 unless it is before `before`."""
    due_at = next_moment(expression, since) or 0
    return due_at if due_at < before else 0


def _changed_at(connection: sa.Connection, key: _RunKey) -> int:
    """Return when the target's schedule was last changed; 0 if the audit log does not say."""
    kind, target, _ = key
    a = tables.audit.c
    changes = (
        sa.select(a.at, a.details)
        .where(a.resource == f"target:{target}", a.action == "target.change")
        .order_by(a.id.desc())
        .limit(_CHANGES)
    )
    setting = SCHEDULES.get(kind)
    changed = (f"+ {setting}=", f"- {setting}=", "+ enable=", "- enable=")
    for row in connection.execute(changes) if kind != TABLES else ():
        if any(str(line).startswith(changed) for line in orjson.loads(row.details).get("settings", ())):
            return int(row.at)
    return 0
