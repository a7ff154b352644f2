"""`bucketwire doctor`: check the service and its configuration. The exit code is 1 on a problem."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from urllib.parse import urlsplit

import click
import kombu

from app.cli.context import CommandContext, with_context
from app.cli.errors import describe_exception
from app.cli.findings import Finding
from app.cli_common.errors import CommandError
from app.cli_common.output import count_noun, printable
from app.cli_common.param_types import format_age
from app.config.target_settings import BadSettings, warnings
from app.outbox.delivery import heartbeats
from app.outbox.delivery.counters import audit
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import now_ms
from app.outbox.engine.schema_version import current
from app.outbox.reconcile.runs import RUNNING, SCAN, Reconciliations
from app.outbox.reconcile.schedule import Schedule, describe_unscheduled
from app.outbox.targets import OPENING_FAILED

_MAX_WAIT = 600_000  # ms that a scheduled run may wait while no other run is active


Check = Callable[[CommandContext], Iterator[Finding]]


@click.command()
@click.option(
    "--frontend",
    "frontends",
    metavar="URL",
    multiple=True,
    help="Also check a MinIO: URL of its metrics, or of the server. Can be repeated.",
)
@click.option(
    "--frontend-token",
    envvar="BUCKETWIRE_FRONTEND_TOKEN",
    default="",
    help="Bearer token for --frontend; prefer BUCKETWIRE_FRONTEND_TOKEN.",
)
@click.option(
    "--frontend-wait",
    type=click.FloatRange(0, 3600),
    default=15,
    show_default=True,
    help="Seconds between two looks at a frontend's queue that is not empty; its metrics are up to 10 s old.",
)
@with_context
def doctor(context: CommandContext, frontends: Sequence[str], frontend_token: str, frontend_wait: float) -> None:
    """Check settings, database, broker, drain, targets and counters. Exit code 1 on a problem.

    With --frontend it also reads the metrics of a MinIO: which events it has lost before they reached Bucketwire, and
    whether the queue of its webhook targets grows.
    """
    findings = [finding for subject, check in CHECKS.items() for finding in _run_check(context, subject, check)]
    if frontends:
        findings += _run_check(
            context, "frontend", lambda context: _check_frontends(context, frontends, frontend_token, frontend_wait)
        )
    bad = sum(finding.grade == "problem" for finding in findings)
    if context.as_json:
        context.json({"problems": bad, "findings": [asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            click.echo(f"{finding.grade:>7}  {finding.subject:<12} {printable(finding.text)}")
        click.echo(f"\n{count_noun(bad, 'problem')}" if bad else "\nall is well")
    click.get_current_context().exit(1 if bad else 0)


def _run_check(context: CommandContext, subject: str, check: Check) -> Iterator[Finding]:
    """Run a check; its own failure is a finding too, so that the other checks still run."""
    try:
        yield from check(context)
    except Exception as error:  # noqa: BLE001 - see above
        yield Finding(subject, "problem", describe_exception(error))


def _check_frontends(context: CommandContext, urls: Sequence[str], token: str, wait: float) -> Iterator[Finding]:
    """Look at every frontend once, and a second time at those whose queues are not empty."""
    from app.cli import frontend_metrics  # noqa: PLC0415 - loads requests, which the other checks do not need

    def look(urls: Iterable[str]) -> Iterator[tuple[str, frontend_metrics.FrontendMetrics | str]]:
        for url in urls:
            try:
                yield url, frontend_metrics.fetch(url, token)
            except frontend_metrics.NoMetrics as error:
                yield url, str(error)

    first = dict(look(map(frontend_metrics.metrics_url, urls)))
    queued = [url for url, metrics in first.items() if not isinstance(metrics, str) and metrics.queued]
    began = time.monotonic()
    if queued:
        if not context.as_json:
            click.echo(f"looking at the queues of {count_noun(len(queued), 'frontend')} again in {wait:g} s", err=True)
        time.sleep(wait)
    seconds = time.monotonic() - began
    second = first | dict(look(queued))
    for url, before in first.items():
        subject, after = urlsplit(url).netloc or "frontend", second[url]
        if isinstance(before, str) or isinstance(after, str):
            yield Finding(subject, "problem", str(after))
        else:
            yield from frontend_metrics.check(subject, before, after, seconds, time.time())


def _check_settings(context: CommandContext) -> Iterator[Finding]:
    settings = context.settings
    database = context.bare_database.url.render_as_string(hide_password=True)
    yield Finding("settings", "ok", f"listen on {settings.listen}, folder {settings.folder}, database {database}")


def _check_database(context: CommandContext) -> Iterator[Finding]:
    yield Finding("database", "ok", f"{context.database.dialect}, at revision {current(context.database)}")


def _check_broker(context: CommandContext) -> Iterator[Finding]:
    url = context.settings.broker_url
    with kombu.Connection(url, connect_timeout=5) as connection:
        shown = connection.as_uri()
        try:
            connection.ensure_connection(max_retries=1, timeout=5)
        except kombu.exceptions.OperationalError as error:
            hint = "is `bucketwire up` running?" if context.settings.embedded_broker else "check BUCKETWIRE_BROKER_URL"
            raise CommandError(f"{shown} does not answer: {error}; {hint}") from None
    yield Finding("broker", "ok", shown)


def _check_drain(context: CommandContext) -> Iterator[Finding]:
    with context.database.reading() as connection:
        at = heartbeats.last_drain(connection)
        now = database_now(connection)
    if at is None:
        yield Finding("drain", "problem", "has never run; start `bucketwire up`, or `bucketwire beat` and a worker")
    elif heartbeats.drain_stopped(at, now):
        hint = "is `bucketwire beat` running, and a worker that is not `--only targets`?"
        yield Finding("drain", "problem", f"last ran {format_age(at, now)} ago; {hint}")
    else:
        yield Finding("drain", "ok", f"last ran {format_age(at, now)} ago")


def _check_queues(context: CommandContext) -> Iterator[Finding]:
    with context.database.reading() as connection:
        now = database_now(connection)
        queues = heartbeats.queues(connection)
    for queue in queues:
        if queue.heartbeat_age(now) > heartbeats.UNSERVED:
            problem = f"no worker has answered on its queue for {format_age(now - queue.heartbeat_age(now), now)}"
            yield Finding(str(queue.target), "problem", f"{problem}; start a worker that serves it (--targets)")


def _check_schedule(context: CommandContext) -> Iterator[Finding]:
    now, waiting = now_ms(), Schedule(context.database).waiting()
    running = any(run.state == RUNNING for run in Reconciliations(context.database).list())
    for run in waiting:
        if now - run.registered_at > _MAX_WAIT and not running:
            job = "scan of" if run.job == SCAN else "reconciliation with"
            problem = f"has waited for its {job} {run.bucket} for {format_age(run.registered_at, now)}"
            yield Finding(str(run.target), "problem", f"{problem}; is a `bucketwire worker --only spark` running?")


def _check_unscheduled(context: CommandContext) -> Iterator[Finding]:
    for target, number in Schedule(context.database).unscheduled_buckets().items():
        yield Finding(str(target), "note", describe_unscheduled(number))


def _check_targets(context: CommandContext) -> Iterator[Finding]:
    named = {rule.rule.target for rule in context.registry.rules()}
    targets = context.registry.targets()
    for stored in targets:
        subject, state, reason = str(stored.target), stored.state, stored.state_reason
        try:
            if not stored.problem:
                context.registry.settings(stored)
                for sentence in warnings(stored.target.type, context.registry.texts(stored)):
                    yield Finding(subject, "note", sentence)
        except BadSettings as error:
            yield Finding(subject, "problem", describe_exception(error))
            continue
        if state == "broken":
            yield Finding(subject, "problem", f"its settings are invalid: {reason}; its events wait")
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


def _check_counters(context: CommandContext) -> Iterator[Finding]:
    for audited in audit(context.database):
        counters = audited.counters
        sums = (
            f"matched {counters.matched} = delivered {counters.delivered} + superseded {counters.superseded} "
            f"+ pending {counters.pending} + parked {counters.parked} + dead {counters.dead} "
            f"+ purged {counters.purged} + discarded {counters.discarded}"
        )
        if audited.difference:
            text = f"{counters.target} do not balance: {sums}, but the event log has {audited.counted} pending"
            yield Finding("counters", "problem", text)
        else:
            yield Finding("counters", "ok", f"{counters.target} balance: {sums}")


CHECKS: Mapping[str, Check] = MappingProxyType(
    {
        "settings": _check_settings,
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
