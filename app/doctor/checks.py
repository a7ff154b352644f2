"""The checks of a service that need nothing but its settings, its outbox database and its broker."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Protocol

from app.ages import format_age
from app.broker import BrokerUnavailable, check_broker
from app.config.settings import Settings
from app.config.target_settings import BadSettings, warnings
from app.doctor.findings import Finding
from app.outbox.delivery import heartbeats
from app.outbox.delivery.counters import audit
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database, now_ms
from app.outbox.engine.encoding import encoding_problem
from app.outbox.engine.schema_version import current, head, is_later
from app.outbox.reconcile.runs import RUNNING, SCAN, Reconciliations
from app.outbox.reconcile.schedule import Schedule, describe_unscheduled
from app.outbox.registry import Registry
from app.outbox.targets import OPENING_FAILED

_MAX_WAIT = 600_000  # ms that a scheduled run may wait while no other run is active
_MAX_COUNTED = 1_000_000  # sequence numbers in which a target's pending events are counted for a request


class Service(Protocol):
    """The service to check, as a command or an API process has it open."""

    @property
    def settings(self) -> Settings:
        """The settings of this process."""

    @property
    def database(self) -> Database:
        """The outbox."""

    @property
    def registry(self) -> Registry:
        """Targets and rules."""


Check = Callable[[Service], Iterator[Finding]]


def run_checks(
    service: Service, describe: Callable[[Exception], str], checks: Mapping[str, Check]
) -> Iterator[Finding]:
    """Run checks, by subject; the failure of one is a finding too, in the words of `describe`, and the others run."""
    for subject, check in checks.items():
        try:
            yield from check(service)
        except Exception as error:  # noqa: BLE001 - see above
            yield Finding(subject, "problem", describe(error))


def _check_database(service: Service) -> Iterator[Finding]:
    revision = current(service.database)
    if revision is None or (revision != head() and not is_later(revision)):
        state = f"is at revision {revision}" if revision else "has no tables yet"
        yield Finding("database", "problem", f"{state}, this version needs {head()}; run `bucketwire migrate`")
    else:
        yield Finding("database", "ok", f"{service.database.dialect}, at revision {revision}")
    with service.database.reading() as connection:
        problem = encoding_problem(connection)
    if problem is not None:
        yield Finding("database", "problem", str(problem))


def _check_broker(service: Service) -> Iterator[Finding]:
    settings = service.settings
    try:
        yield Finding("broker", "ok", check_broker(settings.broker_url))
    except BrokerUnavailable as error:
        hint = "is `bucketwire up` running?" if settings.embedded_broker else "check BUCKETWIRE_BROKER_URL"
        yield Finding("broker", "problem", f"{error}; {hint}")


def _check_drain(service: Service) -> Iterator[Finding]:
    with service.database.reading() as connection:
        at = heartbeats.last_drain(connection)
        now = database_now(connection)
    if at is None:
        yield Finding("drain", "problem", "has never run; start `bucketwire up`, or `bucketwire beat` and a worker")
    elif heartbeats.drain_stopped(at, now):
        hint = "is `bucketwire beat` running, and a worker that is not `--only targets`?"
        yield Finding("drain", "problem", f"last ran {format_age(at, now)} ago; {hint}")
    else:
        yield Finding("drain", "ok", f"last ran {format_age(at, now)} ago")


def _check_queues(service: Service) -> Iterator[Finding]:
    with service.database.reading() as connection:
        now = database_now(connection)
        queues = heartbeats.queues(connection)
    for queue in queues:
        if queue.heartbeat_age(now) > heartbeats.UNSERVED:
            problem = f"no worker has answered on its queue for {format_age(now - queue.heartbeat_age(now), now)}"
            yield Finding(str(queue.target), "problem", f"{problem}; start a worker that serves it (--targets)")


def _check_schedule(service: Service) -> Iterator[Finding]:
    now, waiting = now_ms(), Schedule(service.database).waiting()
    running = any(run.state == RUNNING for run in Reconciliations(service.database).list())
    for run in waiting:
        if now - run.registered_at > _MAX_WAIT and not running:
            job = "scan of" if run.job == SCAN else "reconciliation with"
            problem = f"has waited for its {job} {run.bucket} for {format_age(run.registered_at, now)}"
            yield Finding(str(run.target), "problem", f"{problem}; is a `bucketwire worker --only spark` running?")


def _check_unscheduled(service: Service) -> Iterator[Finding]:
    for target, number in Schedule(service.database).unscheduled_buckets().items():
        yield Finding(str(target), "note", describe_unscheduled(number))


def _check_targets(service: Service) -> Iterator[Finding]:
    named = {rule.rule.target for rule in service.registry.rules()}
    targets = service.registry.targets()
    for stored in targets:
        subject, state, reason = str(stored.target), stored.state, stored.state_reason
        try:
            if not stored.problem:
                service.registry.settings(stored)
                for sentence in warnings(stored.target.type, service.registry.texts(stored)):
                    yield Finding(subject, "note", sentence)
        except BadSettings as error:
            yield Finding(subject, "problem", str(error))
            continue
        if state == "broken":
            yield Finding(subject, "problem", f"its settings are invalid: {reason}; its events wait")
        elif state == "unavailable":
            yield Finding(subject, "problem", f"unavailable: {reason}; its events wait, and a worker tries it again")
        elif state != "running":
            yield Finding(subject, "note", f"{state}: {reason}" if reason else state)
        elif stored.opening == OPENING_FAILED:
            yield Finding(subject, "note", f"a worker could not open it: {stored.opening_reason}")
        elif stored.target not in named:
            yield Finding(
                subject, "note", f"no rule names it, so it gets no events; add one: bucketwire event add '*' {subject}"
            )
        else:
            yield Finding(subject, "ok", "gets events")
    if not targets:
        yield Finding("targets", "note", "there are none; add one: `bucketwire target set TYPE:NAME KEY=VALUE …`")


def _check_counters(service: Service, most: int | None = None) -> Iterator[Finding]:
    for audited in audit(service.database, most=most):
        counters = audited.counters
        sums = (
            f"matched {counters.matched} = delivered {counters.delivered} + superseded {counters.superseded} "
            f"+ pending {counters.pending} + parked {counters.parked} + dead {counters.dead} "
            f"+ purged {counters.purged} + discarded {counters.discarded}"
        )
        if audited.counted is None:
            hint = "too many pending events to count here: `bucketwire doctor` counts them"
            yield Finding("counters", "note", f"{counters.target}: {sums}; {hint}")
        elif audited.difference:
            text = f"{counters.target} do not balance: {sums}, but the event log has {audited.counted} pending"
            yield Finding("counters", "problem", text)
        else:
            yield Finding("counters", "ok", f"{counters.target} balance: {sums}")


CHECKS: Mapping[str, Check] = MappingProxyType(
    {
        "database": _check_database,
        "broker": _check_broker,
        "drain": _check_drain,
        "queues": _check_queues,
        "schedule": _check_schedule,
        "unscheduled": _check_unscheduled,
        "targets": _check_targets,
        "counters": _check_counters,
    }
)
# Those that take a few seconds at most, however much is pending.
SHORT_CHECKS: Mapping[str, Check] = MappingProxyType(
    {**CHECKS, "counters": partial(_check_counters, most=_MAX_COUNTED)}
)
