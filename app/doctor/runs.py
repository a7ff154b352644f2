"""The checks of what runs by time.

Which reconciliations, backfills, scans and updates of the tables failed, wait or are overdue, and what failed or is
overdue of what beat and the drain start beside deliveries.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING

from app.doctor import Finding
from app.logs import clause
from app.outbox import processes
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import now_ms
from app.outbox.policies import HEARTBEATS, RECONCILIATIONS
from app.outbox.reconcile.run_states import RunState, read_run_states
from app.outbox.reconcile.runs import BACKFILL, INCREMENTAL, RECONCILE, RUNNING, SCAN, TABLES, Reconciliations
from app.outbox.reconcile.schedule import Schedule, describe_unscheduled
from app.outbox.upkeep import TaskState, read_tasks
from app.quantities import format_age, format_seconds
from app.resources.drift import describe_drift

if TYPE_CHECKING:
    from app.doctor.checks import Service

_MAX_NAMED = 5  # other buckets in one finding
_JOBS = MappingProxyType(
    {
        RECONCILE: "reconciliation with {}",
        INCREMENTAL: "incremental reconciliation with {}",
        SCAN: "scan of {}",
        BACKFILL: "backfill from {}",
        TABLES: "update",
    }
)
_LISTING = ("reconcile", "ls")
_UPKEEP = "upkeep"


def check_schedule(service: "Service") -> Iterator[Finding]:
    """Find registered runs that no Spark worker begins."""
    now, waiting = now_ms(), Schedule(service.database).waiting()
    with service.database.reading() as connection:
        has_worker = processes.has_spark_worker(connection, database_now(connection))
    running = any(run.state == RUNNING for run in Reconciliations(service.database).list())
    limit = RECONCILIATIONS.max_wait_ms if has_worker else HEARTBEATS.silence_ms
    for run in waiting:
        if now - run.registered_at > limit and not running:
            problem = f"has waited for its {_JOBS[run.job].format(run.bucket)} for {format_age(run.registered_at, now)}"
            text = f"{problem}; is a `bucketwire worker --only spark` running?"
            yield Finding(str(run.target), "problem", text, _LISTING)


def check_unscheduled(service: "Service") -> Iterator[Finding]:
    """Find buckets that the schedule leaves out."""
    for target, number in Schedule(service.database).unscheduled_buckets().items():
        yield Finding(str(target), "note", describe_unscheduled(number))


def check_runs(service: "Service") -> Iterator[Finding]:
    """Find jobs whose newest run failed, and those that are overdue, in one finding of each job of a target."""
    settings = service.settings
    with service.database.reading() as connection:
        now = database_now(connection)
        oldest = now - int(settings.report_retention * 1000)
        states = read_run_states(connection, now, tables_schedule=settings.tables_schedule, oldest=oldest)
    yield from _together((state for state in states if state.failed_at), "failed", now)
    # A run that waits is a finding of the schedule.
    yield from _together((state for state in states if state.due_at and not state.waits), "overdue", now)


def _together(states: Iterable[RunState], what: str, now: int) -> Iterator[Finding]:
    ordered = sorted(states, key=lambda state: (str(state.target), state.kind))
    for (target, kind), group in groupby(ordered, key=lambda state: (str(state.target), state.kind)):
        first, *others = sorted(group, key=lambda state: -state.failed_at if what == "failed" else state.due_at)
        text = _describe_failed(first, now) if what == "failed" else _describe_overdue(first, now)
        if others:
            named = ", ".join(state.bucket for state in others[:_MAX_NAMED])
            more = f" and {len(others) - _MAX_NAMED} more" if len(others) > _MAX_NAMED else ""
            text += f"; the same is true of {named}{more}"
        is_tables = kind == TABLES
        yield Finding(TABLES if is_tables else target, "warning", text, () if is_tables else _LISTING)


def _describe_failed(state: RunState, now: int) -> str:
    job = _JOBS[state.kind].format(state.bucket)
    problem = clause(state.problem) or "it does not say why"
    return f"its last {job} failed {format_age(state.failed_at, now)} ago: {problem}; {_describe_good(state, now)}"


def _describe_good(state: RunState, now: int) -> str:
    if state.good is None:
        return "none before it is known to have succeeded"
    result = ""
    if state.kind in (RECONCILE, INCREMENTAL):
        result = f", and left {describe_drift(state.good.remaining_drift, state.good.counts['in_flight'])}"
    return f"the last good one is older: it ended {format_age(state.good.finished_at, now)} ago{result}"


def _describe_overdue(state: RunState, now: int) -> str:
    return (
        f"its {_JOBS[state.kind].format(state.bucket)} is overdue: it was due {format_age(state.due_at, now)} ago "
        f"({state.schedule}), and none has begun since; do `bucketwire beat` and "
        "`bucketwire worker --only spark` run?"
    )


def check_upkeep(service: "Service") -> Iterator[Finding]:
    """Find what failed when it ran last, and what is overdue; several that are overdue have most likely one cause."""
    with service.database.reading() as connection:
        now = database_now(connection)
        states = read_tasks(connection, now, service_events=service.settings.service_events)
    overdue = [state for state in states if state.due_at]
    for state in states:
        if state.has_failed:
            good = (
                f"it succeeded {format_age(state.succeeded_at, now)} ago"
                if state.succeeded_at
                else "it never succeeded"
            )
            text = f"{state.task.about} failed {format_age(state.failed_at, now)} ago: {clause(state.problem)}; {good}"
            yield Finding(_UPKEEP, "warning", text)
    if overdue:
        listed = "; ".join(_describe(state, now) for state in overdue)
        hint = "does `bucketwire beat` run, and is the worker that drains there and not busy?"
        yield Finding(_UPKEEP, "warning", f"overdue: {listed}; {hint}", ("process", "ls"))


def _describe(state: TaskState, now: int) -> str:
    last = format_age(max(state.succeeded_at, state.failed_at), now)
    return f"{state.task.about}, not done for {last} (due each {format_seconds(state.task.interval_seconds)})"
