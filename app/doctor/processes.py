"""Check the processes, and what they run by time.

Whether each API answers, beat runs, and which host's workers fell silent. Which reconciliations, backfills, scans and
updates of the tables failed, wait or are overdue, and what failed or is overdue of what beat and the drain start beside
deliveries.
"""

import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from app.asked_servers import READY, problem_of
from app.config.networks import is_loopback
from app.doctor import Finding
from app.logs import clause
from app.outbox import processes
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import now_ms
from app.outbox.policies import HEARTBEATS, RECONCILIATIONS
from app.outbox.processes import (
    API,
    BEAT,
    ENDED,
    RUNNING,
    SILENT,
    Process,
    hindered_workers,
    is_starting,
    processes_of,
    read_processes,
    serves,
    silent_workers,
)
from app.outbox.reconcile import runs
from app.outbox.reconcile.runs import BACKFILL, INCREMENTAL, RECONCILE, SCAN, TABLES, Reconciliations
from app.outbox.reconcile.schedule import RunState, Schedule, describe_unscheduled, read_run_states
from app.outbox.upkeep import Missed, Pause, TaskState, beat_at, last_pause, read_missed, read_tasks
from app.quantities import count_noun, format_age, format_seconds
from app.resources.reconciliation import describe_drift

if TYPE_CHECKING:
    from app.doctor.checks import Service


_MAX_ASKED_AT_ONCE = 16
_MAX_NAMED = 5  # workers, what they serve, or other buckets, in one finding
_CANNOT_POST = "frontends cannot post"


def check_api(service: "Service") -> Iterator[Finding]:
    """Ask each API at its address whether it answers."""
    with service.database.reading() as connection:
        now = database_now(connection)
        apis = processes_of(API, read_processes(connection), now)
    own_host = socket.gethostname()
    # An API that is checked by itself answers: it may have no other thread that could.
    own = {one.id for one in apis if (one.host, one.pid) == (own_host, os.getppid())}
    asked = [one for one in apis if one.address and one.id not in own and is_reachable(one, own_host)]
    with ThreadPoolExecutor(_MAX_ASKED_AT_ONCE) as pool:
        answers = pool.map(lambda one: problem_of(one.address, READY), asked)
        problems = dict.fromkeys(own, "") | {one.id: said for one, said in zip(asked, answers, strict=True)}
    yield from api_findings(apis, problems, now, own_host)


def check_spools(service: "Service") -> Iterator[Finding]:
    """Find the APIs whose spool folders have files that are not recorded, as their heartbeats say."""
    with service.database.reading() as connection:
        now = database_now(connection)
        apis = processes_of(API, read_processes(connection), now)
    own = (socket.gethostname(), os.getppid())  # an API looks into its own folder
    yield from spool_findings([api for api in apis if (api.host, api.pid) != own], now)


def spool_findings(apis: Sequence[Process], now: int) -> Iterator[Finding]:
    """Yield what waits in the spool folders of these APIs."""
    for api in apis:
        if api.state(now) == RUNNING:
            for job in api.jobs:
                yield Finding("spool", "warning", f"{api.address or 'an API'} on {api.host}: {job}", ("process", "ls"))


def is_reachable(api: Process, own_host: str) -> bool:
    """Return whether this host can ask an API: not on another host's loopback address."""
    return api.host == own_host or not is_loopback(urlsplit(api.address).hostname or "")


def api_findings(apis: Sequence[Process], problems: Mapping[str, str], now: int, own_host: str) -> Iterator[Finding]:
    """Yield what the answers of APIs mean; `problems` has that of each that was asked, by id, "" for a good one."""
    if not apis:
        yield Finding("api", "note", "none has run yet; `bucketwire api` takes events in")
    elif apis[0].state(now) == ENDED:
        last = f"the last one, on {apis[0].host}, ended {format_age(apis[0].ended_at, now)} ago"
        yield Finding("api", "problem", f"none runs: {last}; {_CANNOT_POST}: start one", ("api",))
    else:
        for api in apis:
            yield _api_finding(api, problems.get(api.id), now, is_here=api.host == own_host)


def _api_finding(api: Process, answer: str | None, now: int, *, is_here: bool) -> Finding:
    where, heard = f"{api.address or 'that'} on {api.host}", f"last heartbeat {format_age(api.at, now)} ago"
    runs = api.state(now) == RUNNING
    if answer == "":
        return Finding("api", "ok", f"{api.address} answers")
    if answer is None and runs:
        return Finding("api", "ok", f"{where} answered {format_age(api.served_at, now)} ago")
    if answer is not None and runs and not is_here:
        return Finding("api", "warning", f"{where} answers there, but to this host it {clause(answer)}; {heard}")
    problem = clause(answer or api.problem) or "is silent"
    if problem.startswith("answers"):
        return Finding("api", "problem", f"{where} {problem}; its log has more")
    text = f"{where} {problem}; {heard}; {_CANNOT_POST}: start it, or look at its log"
    return Finding("api", "problem", text, ("api",))


def check_beat(service: "Service") -> Iterator[Finding]:
    """Find a beat that does not run, and say what was missed meanwhile, for a day."""
    tables_schedule = service.settings.tables_schedule
    with service.database.reading() as connection:
        now = database_now(connection)
        processes = read_processes(connection)
        beats = processes_of(BEAT, processes, now)
        worked_at, pause = beat_at(beats), last_pause(connection)
        is_over = worked_at is not None and now - worked_at <= HEARTBEATS.silence_ms
        if not is_over:
            pause = None if worked_at is None else Pause(worked_at, now)
        if pause is not None and is_over and now - pause.ended >= HEARTBEATS.kept_ms:
            pause = None
        lost = None if pause is None else read_missed(connection, pause, tables_schedule)
    if not beats and is_starting(processes, now):
        yield Finding("beat", "note", "has not recorded a heartbeat yet: the service has just begun")
    else:
        yield from beat_findings(beats, pause, lost, now)


def beat_findings(beats: Sequence[Process], pause: Pause | None, missed: Missed | None, now: int) -> Iterator[Finding]:
    """Yield what beats do and have missed in a pause, the last one or that of now."""
    worked_at, last = beat_at(beats), max(beats, key=lambda one: one.at, default=None)
    runs = last is not None and last.state(now) not in (SILENT, ENDED)
    if last is not None and runs and worked_at is None:
        text = f"it runs, on {last.host}, but nothing by time: {clause(last.problem)}"
        yield Finding("beat", "problem", text, ("process", "ls"))
    elif last is None or worked_at is None:
        text = "has never recorded a heartbeat: nothing runs by time; start `bucketwire up` or `bucketwire beat`"
        yield Finding("beat", "problem", text, ("beat",))
    elif now - worked_at > HEARTBEATS.silence_ms:
        why = f"it runs, but {clause(last.problem)}" if runs else "is `bucketwire beat` running?"
        where = f"last worked {format_age(worked_at, now)} ago, on {last.host}"
        text = f"{where}: nothing is scheduled, purged or sampled; {why}"
        yield Finding("beat", "problem", text + _describe_missed(missed, "; missed so far: "), ("beat",))
    else:
        yield Finding("beat", "ok", f"last worked {format_age(worked_at, now)} ago")
        if pause is not None and now - pause.ended < HEARTBEATS.kept_ms:
            lasted = format_seconds((pause.ended - pause.began) / 1000)
            text = f"did nothing for {lasted} until {format_age(pause.ended, now)} ago"
            yield Finding("beat", "note", text + _describe_missed(missed, "; missed: "))


def _describe_missed(missed: Missed | None, prefix: str) -> str:
    if missed is None or not (missed.samples or missed.runs):
        return ""
    parts = [f"{count_noun(missed.samples, 'sample')} of the curves"] if missed.samples else []
    if missed.runs:
        lost = f" ({missed.lost:,} not made up for)" if missed.lost else ""
        parts.append(f"{count_noun(missed.runs, 'scheduled run')}{lost}")
    return prefix + ", ".join(parts)


def check_hosts(service: "Service") -> Iterator[Finding]:
    """Find the hosts whose workers fell silent, or are there and serve nothing."""
    with service.database.reading() as connection:
        now = database_now(connection)
        processes = read_processes(connection)
    yield from host_findings(processes, now)


def host_findings(processes: Sequence[Process], now: int) -> Iterator[Finding]:
    """Yield one finding for each host with silent workers, and one for each with hindered ones.

    It is a problem if nobody else serves something that they serve, else a warning.
    """
    running = [one for one in processes if one.is_worker and one.state(now) == RUNNING]
    for host, workers in _by_host(silent_workers(processes, now)):
        since = format_age(max(one.at for one in workers), now)
        text = f"is silent: {_named(workers)} recorded no heartbeat for {since}"
        advice = "start what is missing, or forget the host if it was removed"
        yield _host_finding(host, text, workers, running, advice, ("process", "forget", host))
    for host, workers in _by_host(hindered_workers(processes, now)):
        since = format_age(max(one.served_at for one in workers), now)
        serve = f"{_named(workers)} served nothing" + (f" for {since}" if since else " yet")
        reason = next((clause(one.problem) for one in workers if one.problem), "they do not say why")
        yield _host_finding(host, f"{serve}: {reason}", workers, running, "see their logs", ("process", "ls"))


def _by_host(workers: Iterable[Process]) -> Iterator[tuple[str, list[Process]]]:
    for host, group in groupby(sorted(workers, key=lambda one: one.host), key=lambda one: one.host):
        yield host, list(group)


def _named(workers: Sequence[Process]) -> str:
    names = sorted(one.name.partition("@")[0] for one in workers)
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"{count_noun(len(names), 'worker')} ({', '.join(names[:_MAX_NAMED])}{more})"


def _host_finding(
    host: str,
    text: str,
    workers: Iterable[Process],
    running: Sequence[Process],
    advice: str,
    command: tuple[str, ...],
) -> Finding:
    served = sorted({what for worker in workers for what in worker.serves})
    lost = [what for what in served if not any(serves(one.serves, what) for one in running)]
    if not lost:
        return Finding(f"host {host}", "warning", f"{text}; others serve the same; {advice}", command)
    nobody = f"nobody else serves {', '.join(lost[:_MAX_NAMED])}" + (" and more" if len(lost) > _MAX_NAMED else "")
    return Finding(f"host {host}", "problem", f"{text}; {nobody}; {advice}", command)


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
    running = any(run.state == runs.RUNNING for run in Reconciliations(service.database).list())
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
