"""`bucketwire scan`: send the warnings of MinIO's scanner, found in a bucket's listing."""

from typing import TYPE_CHECKING

import click

from app.cli_common.context import ServiceContext
from app.cli_common.output import columns
from app.outbox.engine.database import now_ms
from app.quantities import count_noun
from spark_jobs import runs
from spark_jobs.commands import options

if TYPE_CHECKING:
    from spark_jobs.jobs.scan import ScanResult


@click.command()
@click.argument("bucket")
@options.listing_options
@click.option(
    "--many-versions",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    metavar="N",
    help="s3:Scanner:ManyVersions for an object with more than this many versions.",
)
@click.option(
    "--large-versions",
    type=options.BYTES,
    default="1024GiB",
    show_default=True,
    help="s3:Scanner:LargeVersions for an object whose versions add up to at least this size.",
)
@click.option(
    "--big-prefix",
    type=click.IntRange(1),
    default=50_000,
    show_default=True,
    metavar="N",
    help="s3:Scanner:BigPrefix for a folder with more than this many folders in it.",
)
@click.option("--dry-run", is_flag=True, help="Print the warnings and send no events.")
@options.api_options
@click.option("--scheduled", default="", metavar="RUN", hidden=True, help="Begin a scheduled run; ends with its input.")
@options.with_context
def scan(
    context: ServiceContext, bucket: str, listing: options.ListingOptions, many_versions: int, large_versions: int,
    big_prefix: int, dry_run: bool, rate: float, url: str, scheduled: str,
) -> None:  # fmt: skip
    """Warn of objects with many or large versions and of folders with many folders in BUCKET, as MinIO's scanner does.

    The warnings are events and go where rules send them, such as those of `--event scanner`. A warning with the same
    numbers is sent once a day. Events are posted to the API with BUCKETWIRE_TOKEN. The bucket's settings say where it
    is and how to log in (`bucketwire bucket set`), or boto3's.
    """
    source = listing.source(bucket, context.registry.buckets.access(bucket))
    session_name = f"bucketwire scan {bucket}"
    end_java = options.launch_spark(context, session_name)
    with options.spark_imports():
        from spark_jobs.api_client import Api  # noqa: PLC0415 - --help needs no Spark
        from spark_jobs.jobs import scan as job  # noqa: PLC0415 - as above
        from spark_jobs.runs import recorded  # noqa: PLC0415 - as above
    if scheduled:
        runs.end_with_input()
    limits = job.ScanLimits(many_versions, large_versions, big_prefix)
    log_retention = int(context.settings.retention * 1000)
    config = job.ScanConfig(**source, log_retention=log_retention, grace=listing.grace(None), limits=limits, rate=rate)
    with (
        recorded(context.database, scheduled, int(context.settings.report_retention * 1000)) as report,
        options.spark_session(context, session_name) as spark,
    ):
        if dry_run:
            with job.found_warnings(spark, config) as (found, problem):
                warnings = [row.asDict() for row in found.collect()]
        else:
            result = job.scan(spark, config, Api(*options.api_login(context, url)), now_ms())
            problem = result.problem
        report(problem)
    if problem:
        click.echo(problem, err=True)
    if dry_run:
        context.rows(warnings, columns("name", "key", "versions", "size", "folders"), "no warnings")
    else:
        _report(context, result, problem)
    end_java()


def _report(context: ServiceContext, result: "ScanResult", problem: str) -> None:
    new = result.receipt.get("recorded", 0) + result.receipt.get("spooled", 0)
    names = ", ".join(f"{count:,} {name}" for name, count in result.warnings.items() if count) or "none"
    sentence = f"{count_noun(sum(result.warnings.values()), 'warning')} ({names}), {new:,} of them new"
    if discarded := result.receipt.get("discarded", 0):
        sentence += f"; full queues discarded {discarded:,}"
    context.done(sentence, **result.warnings, receipt=dict(result.receipt), problem=problem)
