"""`bucketwire backfill`: send events for the objects that a bucket already has."""

from pathlib import Path

import click

from app.cli_common.context import ServiceContext
from app.cli_common.output import bar
from app.config.arn import TargetId
from app.quantities import count_noun
from spark_jobs.commands import options


@click.command()
@click.argument("bucket")
@options.target_option
@options.listing_options
@options.grace_option
@click.option("--limit", type=click.IntRange(1), help="Send at most this many events; the next run continues.")
@click.option("--restart", is_flag=True, help="Start from the first key, wherever the last run ended.")
@options.api_options
@click.option(
    "--folder", metavar="FOLDER", help="The folder for checkpoints; by default reconciliations/ in the data directory."
)
@options.with_context
def backfill(
    context: ServiceContext, bucket: str, target: TargetId, listing: options.ListingOptions, grace: int | None,
    limit: int | None, restart: bool, rate: float, url: str, folder: str | None,
) -> int:  # fmt: skip
    """Send TARGET an event for every object of BUCKET that its rules match, in the order of keys.

    Use it for queues and for empty mirrors; `reconcile --repair` fills the gaps of a mirror that has rows.
    An interrupted backfill continues when it is started again; no event is delivered twice because of it.
    Events are posted to the API with BUCKETWIRE_TOKEN. The bucket's settings say where
    it is and how to log in (`bucketwire bucket set`), or boto3's.
    """
    source = listing.source(bucket, context.registry.buckets.access(bucket))
    context.registry.target(target)  # fail before Spark starts if the target is unknown
    session_name = f"bucketwire backfill {bucket}"
    end_java = options.launch_spark(context, session_name)
    with options.spark_imports():
        from spark_jobs.api_client import Api  # noqa: PLC0415 - --help needs no Spark
        from spark_jobs.jobs import backfill as job  # noqa: PLC0415 - as above
    settings = context.settings
    checkpoints = Path(folder).absolute() if folder else settings.folder / "reconciliations"
    config = job.BackfillConfig(
        **source,
        target=target,
        folder=checkpoints,
        reports=settings.reports or str(checkpoints),
        grace=listing.grace(grace),
        log_retention=int(settings.retention * 1000),
        rate=rate,
        limit=limit,
        restart=restart,
    )
    api = Api(*options.api_login(context, url))
    with options.spark_session(context, session_name) as spark, bar(context) as progress:
        task = progress.add_task("listing", total=None)
        result = job.backfill(
            spark, context.database, context.registry, config, api,
            lambda done, total: progress.update(task, description=bucket, completed=done, total=total),
        )  # fmt: skip
    if result.problem:
        click.echo(result.problem, err=True)
    sentence = f"{result.state}: {count_noun(result.counts['repaired'], 'event')} sent to {target}"
    if already_sent := result.counts["target_rows"]:
        sentence += f", {already_sent:,} had been sent before"
    if in_flight := result.counts["in_flight"]:
        sentence += f", {in_flight:,} objects have newer events of their own"
    if result.state == "unfinished":
        sentence += "; start it again to continue"
    context.done(sentence, state=result.state, after=result.after, problem=result.problem, **result.counts)
    end_java()
    return int(result.state == "unfinished" and limit is None)
