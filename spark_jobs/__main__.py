"""`python -m spark_jobs …`: the jobs as programs; `bucketwire reconcile`, `backfill`, `scan`, `journal` become them."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from app.cli import run_command
from app.cli.context import CommandContext, count_noun
from app.cli.errors import CommandError
from app.cli.param_types import TARGET
from app.config.arn import TargetId
from app.config.targets.base import NamespaceSettings
from app.outbox.reconcile.runs import AlreadyRunning
from app.outbox.reconcile.schedule import Schedule
from spark_jobs import shutdown
from spark_jobs.commands import options
from spark_jobs.commands.backfill import backfill
from spark_jobs.commands.journal import journal
from spark_jobs.commands.scan import scan
from spark_jobs.errors import reason

_DRIFT = 2  # the exit code of --check


@click.group()
def jobs() -> None:
    """Jobs that run on Spark."""


jobs.add_command(backfill)
jobs.add_command(scan)
jobs.add_command(journal)


@jobs.command()
@click.argument("bucket")
@click.option("--target", type=TARGET, required=True, help="The target, as type:name or ARN.")
@options.listing_options
@options.grace_option
@click.option("--check", is_flag=True, help="Exit with 2 if there is drift that was not repaired.")
@click.option("--repair", is_flag=True, help="Set right what differs.")
@click.option("--max-repairs", type=click.IntRange(0), default=100_000, show_default=True, help="In this run.")
@click.option(
    "--max-removals",
    type=click.FloatRange(0, 100),
    default=10.0,
    show_default=True,
    help="Per cent of the target's rows that may go; with more, none does.",
)
@click.option("--rate", type=click.FloatRange(1), default=1000.0, show_default=True, help="Repairs in a second.")
@click.option(
    "--report", metavar="FOLDER", help="Where reports go; reconciliations/ in the service's folder unless given."
)
@click.option("--url", envvar="BUCKETWIRE_URL", default="", help="The API, for repairs; else BUCKETWIRE_LISTEN says.")
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
@click.option("--scheduled", default="", metavar="RUN", hidden=True, help="A run that waits; ends with its input.")
def reconcile(
    bucket: str, target: TargetId, endpoint: str, versions: bool | None, listing: str, listed_at: int | None,
    inventory: str, grace: int | None, check: bool, repair: bool, max_repairs: int, max_removals: float, rate: float,
    report: str | None, url: str, as_json: bool, scheduled: str,
) -> int:  # fmt: skip
    """Compare what TARGET holds with what BUCKET holds, report every difference, and repair it with --repair.

    BUCKETWIRE_TOKEN is sent with repairs. Credentials for the bucket are found as boto3 finds them.
    """
    source = options.listed(listing, listed_at, inventory, endpoint)
    try:
        from spark_jobs.api_client import Api, RepairLimits  # noqa: PLC0415 - as above
        from spark_jobs.jobs import reconcile as job  # noqa: PLC0415 - --help needs no Spark
        from spark_jobs.session import session  # noqa: PLC0415 - as above
    except ImportError as missing:
        raise CommandError(f"{missing.name} is not installed; it comes with: pip install 'bucketwire[spark]'") from None
    if scheduled:
        shutdown.with_input()
    shell = CommandContext(as_json=as_json)
    settings = shell.settings
    wanted = job.ReconcileConfig(
        bucket=bucket,
        target=target,
        folder=Path(report).absolute() if report else settings.folder / "reconciliations",
        **source,
        versions=versions,
        endpoint=endpoint,
        grace=options.grace(grace, inventory),
        repair=repair,
        brakes=RepairLimits(most=max_repairs, removals=max_removals, rate=rate),
        kept=int(settings.report_retention * 1000),
    )
    try:
        if scheduled:
            wanted = replace(wanted, run=scheduled, repair=repairs(shell, target, scheduled))
        api = Api(*options.api_place(shell, url))
        opened = partial(
            session,
            f"bucketwire reconcile {bucket}",
            master=settings.spark_master,
            jars=settings.spark_jars,
            memory=settings.spark_memory,
        )
        result = job.run(opened, shell.database, shell.registry, wanted, api)
    finally:
        shell.close()
    numbers = ", ".join(f"{count:,} {name}" for name, count in result.counts.items() if count)
    sentence = f"{result.state}: {count_noun(result.drift, 'difference')} ({numbers or 'nothing there'}); {result.page}"
    if result.problem:
        click.echo(result.problem, err=True)
    shell.done(sentence, state=result.state, page=str(result.page), problem=result.problem, **result.counts)
    return _DRIFT if check and result.state == "drift" else 0


def repairs(shell: CommandContext, target: TargetId, run: str) -> bool:
    """Whether a run that waits is to repair: as the settings say, but never the first. Raises `AlreadyRunning`."""
    found = next((each for each in Schedule(shell.database).waiting() if each.run == run), None)
    if found is None:
        raise AlreadyRunning(f"the run {run} has been begun before")
    settings = shell.registry.settings(shell.registry.target(target))
    return isinstance(settings, NamespaceSettings) and settings.reconcile_repair and not found.first


def _in_words(error: Exception) -> str | None:
    kind = type(error).__module__.partition(".")[0]
    if kind == "spark_jobs" or isinstance(error, AlreadyRunning):
        return str(error)
    if kind in ("botocore", "boto3"):
        return f"the bucket cannot be listed: {error}"
    if kind in ("pyspark", "py4j"):
        return f"Spark: {reason(error)}; BUCKETWIRE_DEBUG=1 shows the rest"
    return None


if __name__ == "__main__":
    shutdown.by_sigterm()
    run_command(jobs, words=_in_words, later=AlreadyRunning)
