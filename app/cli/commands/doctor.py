"""`bucketwire doctor`: check the service and its configuration. The exit code is 1 on a problem."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from urllib.parse import urlsplit

import click

from app.cli.errors import describe_exception
from app.cli_common.context import ServiceContext, pass_context
from app.cli_common.output import hang, mending_command, printable, terminal_width, text_width
from app.config.fields.addresses import hide_typed_secret
from app.doctor import Finding
from app.doctor.checks import CHECKS, Check, run_checks
from app.quantities import count_noun


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
@pass_context(ServiceContext)
def doctor(context: ServiceContext, frontends: Sequence[str], frontend_token: str, frontend_wait: float) -> None:
    """Check settings, database, broker, drain, targets, counters and tokens. Exit code 1 on a problem.

    With --frontend it also reads the metrics of a MinIO: which events it has lost before they reached Bucketwire, and
    whether the queue of its webhook targets grows.
    """
    checks: dict[str, Check] = {"settings": lambda _: _check_settings(context), **CHECKS}
    if frontends:
        checks["frontend"] = lambda _: _check_frontends(context, frontends, frontend_token, frontend_wait)
    findings = run_checks(context, describe_exception, checks)
    bad = sum(finding.grade == "problem" for finding in findings)
    doubtful = sum(finding.grade == "warning" for finding in findings)
    if context.as_json:
        found = [asdict(finding) for finding in findings]
        context.json({"problems": bad, "warnings": doubtful, "findings": found})
    else:
        for finding in findings:
            prefix = f"{finding.grade:>7}  {finding.subject:<12} "
            for line in hang(prefix, printable(finding.text), terminal_width()):
                click.echo(line)
            if finding.grade in ("problem", "warning") and (command := mending_command(finding.text, finding.command)):
                click.echo(f"{'':>{text_width(prefix)}}{command}")
        counted = [count_noun(number, noun) for number, noun in ((bad, "problem"), (doubtful, "warning")) if number]
        click.echo(f"\n{', '.join(counted) or 'all is well'}")
    click.get_current_context().exit(1 if bad else 0)


def _check_frontends(context: ServiceContext, urls: Sequence[str], token: str, wait: float) -> Iterator[Finding]:
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


def _check_settings(context: ServiceContext) -> Iterator[Finding]:
    settings = context.settings
    database = hide_typed_secret(context.bare_database.url.render_as_string(hide_password=True))
    yield Finding("settings", "ok", f"listen on {settings.listen}, folder {settings.folder}, database {database}")
