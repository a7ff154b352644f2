"""Find what failed and what is overdue: the newest run of each kind, target and bucket that has ended decides.

A run is overdue if its schedule's due time has passed and none has begun. That needs neither beat nor a Spark worker:
whoever reads the table of runs sees it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson
import sqlalchemy as sa

from app.config.arn import TargetId
from app.config.fields.times import next_moment
from app.outbox import processes, tables
from app.outbox.policies import HEARTBEATS, RECONCILIATIONS
from app.outbox.reconcile.runs import (
    INCREMENTAL,
    PROCESS_DIED,
    RECONCILE,
    TABLES,
    TABLES_TARGET,
    WAITING,
    WHOLE,
    Reconciliation,
    newest_runs,
)
from app.outbox.reconcile.schedule import SCHEDULES, scheduled_pairs

_CHANGES = 100  # of a target's settings, among which the last one of its schedule is looked for

Key = tuple[str, TargetId, str]  # the kind of the run, its target, and its bucket or what of it it is about


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


def _schedules(connection: sa.Connection, tables_schedule: str) -> Mapping[Key, str]:
    schedules = {(job, target, bucket): expression for job, target, bucket, expression in scheduled_pairs(connection)}
    return {**schedules, **({(TABLES, TABLES_TARGET, ""): tables_schedule} if tables_schedule else {})}


def _starts(connection: sa.Connection, now: int) -> tuple[dict[Key, int], set[Key], set[Key]]:
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


def _configured_at(connection: sa.Connection, key: Key, created: Mapping[TargetId, int]) -> int:
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


def _changed_at(connection: sa.Connection, key: Key) -> int:
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
