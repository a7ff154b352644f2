"""Show the state of the service: counters and processes, health checks for probes, and the doctor's findings."""

import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from flask import Blueprint, Flask, current_app, request
from msgspec import UNSET

from app.api.auth import ADMIN, PUBLIC, READ, is_limited, may_see, needs
from app.api.description import answers
from app.api.errors import ApiProblem, to_problem
from app.api.services import Services, services
from app.api.wsgi_layers import stopping
from app.cached_probe import CachedProbe, NoAnswer
from app.config.arn import parse_target
from app.config.errors import BadSettings, BadValue
from app.doctor import Finding
from app.doctor.checks import SHORT_CHECKS, check_carried, run_checks
from app.doctor.checks import Check as DoctorCheck
from app.outbox import schema_version, upkeep
from app.outbox.admin.counters import read_status
from app.outbox.delivery.leases import lease_holders, leased_partitions
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.spool import describe_waiting, waiting_files
from app.outbox.policies import HEARTBEATS, SPOOL
from app.outbox.processes import ENDED, SILENT, forget_host, listed_processes, read_processes, read_queues
from app.outbox.processes import Process as KnownProcess
from app.outbox.schema_version import SchemaState
from app.outbox.sources.rows import read_sources
from app.outbox.upkeep import read_beat_at
from app.quantities import count_noun, format_age
from app.release import VERSION
from app.resources.declaration import TEXT, format_time, refuse_unknown
from app.resources.service import (
    Alive,
    Check,
    Diagnosis,
    DoctorFinding,
    Drain,
    OtherProcess,
    Process,
    Processes,
    Readiness,
    Status,
    WorkerQueue,
)
from app.resources.target import Counters

routes = Blueprint("service", __name__)
_NOT_READY = ("a check is not ok; see its reason", Readiness)
_READINESS = "bucketwire_readiness"
_DIAGNOSIS = "bucketwire_doctor"
_SLOW = "the database, the broker or an API does not answer, or this host is too busy"


@routes.get("/v1/status")
@needs(READ)
@answers(Status, "the state of the service")
def status() -> Status:
    """Return the version, the checks of /readyz, the targets by state, and the sums of their counters."""
    with services().database.snapshot() as connection:
        statuses = read_status(connection)
        now = database_now(connection)
    ready, checks = readiness()
    sums = {name: sum(getattr(one.counters, name) for one in statuses) for name in Counters.__struct_fields__}
    oldest = [one.counters.oldest for one in statuses if one.counters.oldest]
    return Status(
        version=VERSION,
        region=services().settings.region,
        ready=ready,
        checks=checks,
        targets=Counter(one.stored.state for one in statuses),
        events=Counters(**sums),
        oldest_age=max(0, now - min(oldest)) / 1000 if oldest else None,
    )


@routes.get("/v1/processes")
@needs(READ)
@answers(Processes, "the processes")
def processes() -> Processes:
    """Return the processes by their heartbeats, when the drain ran, and since when each target's queue is served.

    Each records a heartbeat every 5 seconds, with its version and what it serves. One that was killed is silent after
    30 seconds, an API after 20, and is listed until another one has replaced it, for a day at most. One that lost the
    broker, and an API that does not answer at its address, is hindered. `served` is false 45 seconds after the last
    heartbeat of a worker that serves the queue.
    """
    with services().database.snapshot() as connection:
        drained = upkeep.last_drain(connection)
        now = database_now(connection)
        known = read_processes(connection)
        queues = read_queues(connection, known, now)
        leased = leased_partitions(connection, now)
        holders = lease_holders(connection, now)
        sources = read_sources(connection)
    pulling = [(stored.holder, str(stored.source)) for stored in sources if stored.leased_until > now]
    own = {holder for one in known for holder in one.holders}
    age = upkeep.drain_age(drained, now)
    arns = {queue.row_id: queue.target.arn(services().settings.region) for queue in queues}
    return Processes(
        flower=services().settings.flower_url or None,
        drain=Drain(running=not upkeep.drain_stopped(drained, now), age=None if age is None else age / 1000),
        processes=[_process(one, holders, arns, pulling, now) for one in listed_processes(known, now)],
        queues=[
            WorkerQueue(
                target=queue.target.arn(services().settings.region),
                served_at=format_time(queue.served_at),
                age=queue.heartbeat_age(now) / 1000,
                served=queue.is_served(now),
                refused=queue.refused,
                leased_partitions=leased.get(queue.row_id, 0),
            )
            for queue in queues
        ],
        other_processes=[_other_process(name, held, arns) for name, held in sorted(holders.items()) if name not in own],
    )


@routes.delete("/v1/processes/<name>")
@needs(ADMIN)
@answers(None, "they are forgotten", status=204, path={"name": "of their host"})
def forget(name: str) -> None:
    """Forget the processes of a host that fell silent, and an API or a beat of it that ended: they are missed no more.

    One that is there after all is listed again with its next heartbeat.
    """
    if not forget_host(services().database, TEXT.read("name", name)):
        raise ApiProblem("not-found", f"no process of {name} is silent; `bucketwire process ls` lists them")


def _process(
    process: KnownProcess,
    holders: Mapping[str, Mapping[int, int]],
    arns: Mapping[int, str],
    pulling: Iterable[tuple[str, str]],
    now: int,
) -> Process:
    own, state = set(process.holders), process.state(now)
    leased = Counter[int]()
    for holder in own & holders.keys():
        leased.update(holders[holder])
    return Process.of(
        process,
        processes=list(process.processes),
        serves=list(process.serves),
        jobs=list(process.jobs),
        refused={target: refusal.reason for target, refusal in process.refused.items()},
        state=state,
        targets=[arns[row_id] for row_id in sorted(leased) if row_id in arns],
        leased_partitions=leased.total(),
        sources=[source for holder, source in pulling if holder in own],
        heartbeat_at=format_time(process.at),
        age=process.age(now) / 1000,
        alive=state not in (SILENT, ENDED),
    )


def _other_process(name: str, held: Mapping[int, int], arns: Mapping[int, str]) -> OtherProcess:
    host, _, pid = name.rpartition(":")
    return OtherProcess(
        host=host,
        pid=int(pid) if pid.isdigit() else 0,
        leased_partitions=sum(held.values()),
        targets=[arns[row_id] for row_id in sorted(held) if row_id in arns],
    )


def health_probe(database: Database) -> CachedProbe[Mapping[str, Any]]:
    """Return the probe for `/readyz`; a hanging database blocks no more than one thread."""
    return CachedProbe(lambda: _read_state(database), age=0.5, patience=2.0)


def install_readiness(app: Any, database: Database) -> None:
    """Add the readiness probe to the app."""
    app.extensions[_READINESS] = health_probe(database)


@routes.get("/healthz")
@needs(PUBLIC)
@answers(Alive, "the process responds", other_answers={503: ("it stops soon, and still answers", Alive)})
def healthz() -> tuple[Alive, int]:
    """Report that the process responds; the database is not checked.

    After SIGTERM the answer is 503 for the time of `BUCKETWIRE_STOP_DELAY`, in which the API answers other requests as
    before.
    """
    return (Alive(status="stopping"), 503) if stopping.begun else (Alive(status="ok"), 200)


@routes.get("/readyz")
@needs(PUBLIC)
@answers(Readiness, "every check is ok", other_answers={503: _NOT_READY})
def readyz() -> tuple[Readiness, int]:
    """Check the database, its schema, the drain, beat and the spool folder.

    With a spool folder, the API also accepts events while the answer is 503. An unavailable target or a queue without a
    worker does not make the service unready.
    """
    ready, checks = readiness()
    if stopping.begun:
        ready, checks = False, checks | {"process": Check(ok=False, reason="this API stops soon")}
    return Readiness(ready=ready, checks=checks), 200 if ready else 503


def readiness() -> tuple[bool, dict[str, Check]]:
    """Return whether every check is ok, and the checks; a hanging database costs two seconds at most."""
    if _READINESS not in current_app.extensions:  # a command's app
        install_readiness(current_app, services().database)
    result = current_app.extensions[_READINESS].get()
    checks = make_checks(result.value, result.error, schema_version.head(), now_ms())
    feeder = services().feeder
    if feeder is not None:
        waiting, damaged = waiting_files(feeder.spool.folder), feeder.spool.damaged()
        age = waiting.age(now_ms()) / 1000 if waiting.number else UNSET
        reason = f"{count_noun(damaged, 'file')} in quarantine" if damaged else UNSET
        checks["spool"] = Check(ok=not damaged, reason=reason, age=age, files=waiting.number, quarantined=damaged)
    return all(check.ok for check in checks.values()), checks


def make_checks(state: Mapping[str, Any] | None, error: Exception | None, head: str, now: int) -> dict[str, Check]:
    """Return the checks from the database's last state and the error since. Names no address: the route is public."""
    if error is not None or state is None:
        reason = str(error) if isinstance(error, NoAnswer) else "it cannot be reached; see the API's log"
        unknown = Check(ok=False, reason="the database is unavailable")
        return {"database": Check(ok=False, reason=reason), "schema": unknown, "drain": unknown, "beat": unknown}
    # During a rolling upgrade, processes of the previous version work with the new schema and must stay in service.
    schema: SchemaState = state["schema"]
    age, runs = upkeep.drain_age(state["drained"], now), not upkeep.drain_stopped(state["drained"], now)
    drain_reason = UNSET if runs else "nothing is delivered: do the broker, a beat and a worker that drains run?"
    return {
        "database": Check(ok=True),
        "schema": Check(ok=not schema.problem, revision=schema.revision, needed=head, reason=schema.hint or UNSET),
        "drain": Check(ok=runs, age=None if age is None else age / 1000, reason=drain_reason),
        "beat": _check_beat(state["beat"], now),
    }


def _check_beat(worked_at: int | None, now: int) -> Check:
    """Check whether beat has worked lately; of one that never has, an earlier version may run."""
    if worked_at is None:
        return Check(ok=True, age=None)
    age = max(0, now - worked_at)
    runs = age <= HEARTBEATS.silence_ms
    return Check(ok=runs, age=age / 1000, reason=UNSET if runs else "nothing runs by time: does a beat run?")


def _read_state(database: Database) -> Mapping[str, Any]:
    schema = schema_version.check(database)
    if schema.revision is None:
        return {"schema": schema, "drained": None, "beat": None}
    with database.reading() as connection:
        times = {"drained": upkeep.last_drain(connection)}
        times["beat"] = None if schema.problem else read_beat_at(connection)
        ahead = now_ms() - database_now(connection)  # they were recorded by the database's clock
    return {"schema": schema} | {name: None if at is None else at + ahead for name, at in times.items()}


def install_doctor(app: Flask, opened: Services, instead: Mapping[str, DoctorCheck] = MappingProxyType({})) -> None:
    """Add the checks to the app: they run in one thread of the process, at most once a second.

    Few requests wait for checks that take long, such as of a broker that does not answer; others get the last result.
    Counting what is pending takes longer, and the OpenID Connect provider is somebody else's: that is done at most once
    a minute. Checks of `instead` take the place of those of their names.
    """
    comparing = Finding("counters", "note", "they are being compared with the event log")
    asking = Finding("openid", "note", f"the provider {opened.settings.oidc_issuer} is being asked")

    def spool(_: object) -> Iterator[Finding]:
        if opened.feeder is None:
            return
        if damaged := opened.feeder.spool.damaged():
            text = f"{count_noun(damaged, 'file')} in quarantine: their events could not be recorded"
            yield Finding("spool", "problem", text)
        waiting, now = waiting_files(opened.feeder.spool.folder), now_ms()
        if waiting.age(now) > SPOOL.waiting_ms:
            grade = "problem" if waiting.age(now) > SPOOL.old_ms else "warning"
            text = f"this API on {socket.gethostname()}: {describe_waiting(waiting, now)}"
            yield Finding("spool", grade, f"{text}; they are recorded once the database takes them")

    checks = {
        **SHORT_CHECKS,
        "counters": _once_a_minute(opened, "counters", comparing, patience=4.0),
        "openid": _once_a_minute(opened, "openid", asking, patience=2.0) if opened.settings.oidc_issuer else _nothing,
        "spool": spool,
        **instead,
    }
    app.extensions[_DIAGNOSIS] = CachedProbe(
        lambda: (now_ms(), run_checks(opened, _describe_failure, checks)), age=1.0, patience=10.0, max_waiting=4
    )


def _once_a_minute(opened: Services, name: str, meanwhile: Finding, *, patience: float) -> DoctorCheck:
    """Return a check that is run at most once a minute; while it goes on it has its last result, or `meanwhile`."""
    probe = CachedProbe(lambda: list(SHORT_CHECKS[name](opened)), age=60.0, patience=patience)

    def check(_: object) -> Iterator[Finding]:
        result = probe.get()
        if isinstance(result.error, NoAnswer):
            yield from result.value or [meanwhile]
        elif result.error is not None:
            raise result.error
        else:
            yield from result.value or ()

    return check


@routes.get("/v1/doctor")
@needs(READ, limited=True)
@answers(Diagnosis, "what was found")
def doctor() -> Diagnosis:
    """Check database, broker, drain, queues, schedule, targets, sources, counters and tokens.

    The checks of `bucketwire doctor` that need nothing but the database and the broker. The result is up to a second
    old, the counters' and the OpenID Connect provider's up to a minute. Targets with a very large backlog are not
    counted; the command counts them, and checks frontends. A token that is limited to targets gets what concerns them.
    """
    refuse_unknown(request.args, ())
    if _DIAGNOSIS not in current_app.extensions:  # a command's app
        install_doctor(current_app, services(), {"broker": check_carried, "eviction": _nothing, "openid": _nothing})
    result = current_app.extensions[_DIAGNOSIS].get()
    checked_at, findings = result.value or (now_ms(), [])
    if result.error is not None or result.value is None:  # not in time, or never; what was found before is still told
        why = str(result.error)
        if isinstance(result.error, NoAnswer) and result.value is not None:
            why = f"{_SLOW}; what else is said is of {format_age(checked_at, now_ms())} ago"
        findings = [Finding("doctor", "problem", f"the checks do not end: {why}"), *findings]
    return _diagnosis(checked_at, [finding for finding in findings if _may_see(finding)])


def _nothing(_: object) -> Iterator[Finding]:
    return iter(())


def _may_see(finding: Finding) -> bool:
    if not is_limited():
        return True
    try:
        return may_see(parse_target(finding.subject))
    except BadValue:  # a part of the service
        return False


def _diagnosis(checked_at: int, findings: Sequence[Finding]) -> Diagnosis:
    return Diagnosis(
        checked_at=format_time(checked_at),
        problems=sum(finding.grade == "problem" for finding in findings),
        warnings=sum(finding.grade == "warning" for finding in findings),
        findings=[DoctorFinding.of(finding) for finding in findings],
    )


def _describe_failure(error: Exception) -> str:
    """Describe why a check failed, as a problem would: what may contain an address is in the log only."""
    if isinstance(error, BadSettings):
        return str(error)
    found = to_problem(error)
    return f"{found.detail} ({found.members['id']})" if "id" in found.members else found.detail
