"""`bucketwire reconcile run`: compare a target with a bucket, and repair the drift."""

from dataclasses import replace
from functools import partial

import click

from app.cli_common.context import ServiceContext
from app.cli_common.output import bar
from app.config.arn import TargetId
from app.config.targets.base import NamespaceSettings
from app.listings.limits import RepairLimits
from app.outbox.errors import AlreadyRunning
from app.outbox.reconcile.runs import Progress, Reconciliations
from app.outbox.reconcile.schedule import Schedule
from app.resources.reconciliation import FORMATS, describe_drift
from spark_jobs import errors, java_environment, runs
from spark_jobs.commands import options

_EXIT_DRIFT = 3  # the exit code of --check; 2 is that of wrong usage


@click.command()
@click.argument("bucket")
@options.target_option
@options.listing_options
@options.grace_option
@click.option(
    "--incremental",
    is_flag=True,
    help="Only the keys that events have named since the last run; the whole bucket if the log lacks some of them.",
)
@click.option("--check", is_flag=True, help="Exit with 3 if there is drift that was not repaired.")
@click.option("--repair", is_flag=True, help="Repair the drift.")
@options.limit_options
@click.option(
    "--report", metavar="FOLDER", help="The folder for reports, a path or a URL; by default that of BUCKETWIRE_REPORTS."
)
@click.option(
    "--format", "formats", type=click.Choice(list(FORMATS)), multiple=True,
    help="Also write all findings beside the report as lines, in findings.FORMAT: "
    + "; ".join(f"{form}: {about}" for form, about in FORMATS.items()) + ".",
)  # fmt: skip
@options.url_option
@click.option("--scheduled", default="", metavar="RUN", hidden=True, help="Begin a scheduled run; ends with its input.")
@options.with_context
def run(
    context: ServiceContext, bucket: str, target: TargetId, listing: options.ListingOptions, grace: int | None,
    incremental: bool, check: bool, repair: bool, limits: RepairLimits, report: str | None, formats: tuple[str, ...],
    url: str, scheduled: str,
) -> int:  # fmt: skip
    """Compare the rows of TARGET with the objects of BUCKET, report every difference, and repair it with --repair.

    Repairs are posted to the API with BUCKETWIRE_TOKEN. The bucket's settings say where
    it is and how to log in (`bucketwire bucket set`), or boto3's.
    """
    if incremental and (listing.prefix or listing.listing or listing.inventory):
        raise click.UsageError("--incremental asks S3 for single keys; leave out --prefix, --listing and --inventory")
    source = listing.source(bucket, context.registry.buckets.access(bucket))
    stored = context.registry.target(target)  # fail before Spark starts if the target is unknown
    errors.remember(context.registry.settings(stored))
    session_name = f"bucketwire reconcile {bucket}"
    known = Reconciliations(context.database).last_size(target, bucket)
    size = java_environment.estimated_size(known, listing.listing)
    end_java = options.launch_spark(context, session_name, is_short=0 < size <= java_environment.MAX_QUICK_KEYS)
    with options.spark_imports():
        from spark_jobs.api_client import Api  # noqa: PLC0415 - --help needs no Spark
        from spark_jobs.jobs import reconcile as job  # noqa: PLC0415 - as above
    if scheduled:
        runs.end_with_input()
    settings = context.settings
    config = job.ReconcileConfig(
        **source,
        target=target,
        reports=report or settings.reports or str(settings.folder / "reconciliations"),
        grace=listing.grace(grace),
        log_retention=int(settings.retention * 1000),
        repair=repair,
        limits=limits,
        formats=formats,
        retention=int(settings.report_retention * 1000),
        connections=settings.spark_connections,
        size=size,
        incremental=incremental,
    )
    if scheduled:
        config = replace(config, run=scheduled, repair=may_repair(context, target, scheduled))
    open_session = partial(options.spark_session, context, session_name)
    api = Api(*options.api_login(context, url))
    with bar(context) as progress:
        task = progress.add_task(bucket, total=None)
        result = job.run(
            open_session, context.database, context.registry, config, api,
            lambda measured: progress.update(task, description=describe_progress(measured)),
        )  # fmt: skip
    counts = ", ".join(f"{count:,} {name}" for name, count in result.counts.items() if count) or "no objects, no rows"
    part = f" below {config.prefix!r} of the bucket" if config.prefix else ""
    if result.is_incremental:
        part = " among the keys of events since the last run"
    left = describe_drift(result.drift, result.counts["in_flight"])
    sentence = f"{result.state}{part}: {left} ({counts}); {result.page}"
    if result.problem:
        click.echo(result.problem, err=True)
    context.done(sentence, state=result.state, page=result.page, problem=result.problem, **result.counts)
    end_java()
    return _EXIT_DRIFT if check and result.state == "drift" else 0


def describe_progress(progress: Progress) -> str:
    """Return a line that says how far a run is."""
    read = f": {progress.keys:,} keys, {progress.rate:,} per second" if progress.keys else ""
    left = "" if progress.remaining is None else f", about {progress.remaining} s left"
    return f"{progress.stage}{read}{left}"


def may_repair(context: ServiceContext, target: TargetId, run: str) -> bool:
    """Return whether a waiting run repairs: as it was requested, or if the target's settings say so, but not the first.

    Raises `AlreadyRunning` if the run does not wait any more.
    """
    waiting = next((waiting for waiting in Schedule(context.database).waiting() if waiting.run == run), None)
    if waiting is None:
        raise AlreadyRunning(f"the run {run} has already been started")
    if waiting.repair is not None:
        return waiting.repair
    settings = context.registry.settings(context.registry.target(target))
    return isinstance(settings, NamespaceSettings) and settings.reconcile_repair and not waiting.first
