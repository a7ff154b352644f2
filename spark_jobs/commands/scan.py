"""`bucketwire scan`: what MinIO's scanner warns of, found in a bucket's listing and told by events."""

import click

from app.cli.context import CommandContext, count_noun
from app.outbox.engine.database import now_ms
from spark_jobs.commands import options

_COLUMNS = {name: name for name in ("name", "key", "versions", "size", "folders")}


@click.command()
@click.argument("bucket")
@options.listing_options
@click.option(
    "--many-versions",
    type=click.IntRange(2),
    default=1000,
    show_default=True,
    metavar="N",
    help="s3:Scanner:ManyVersions for an object with so many versions or more.",
)
@click.option(
    "--large-versions",
    type=options.BYTES,
    default="1024GiB",
    show_default=True,
    help="s3:Scanner:LargeVersions for an object whose versions add up to this or more.",
)
@click.option(
    "--big-prefix",
    type=click.IntRange(1),
    default=50_000,
    show_default=True,
    metavar="N",
    help="s3:Scanner:BigPrefix for a folder with more than so many folders in it.",
)
@click.option("--dry-run", is_flag=True, help="Show what is found, and tell nobody.")
@options.api_options
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
def scan(
    bucket: str, endpoint: str, versions: bool | None, listing: str, listed_at: int | None, inventory: str,
    many_versions: int, large_versions: int, big_prefix: int, dry_run: bool, rate: float, url: str, as_json: bool,
) -> None:  # fmt: skip
    """Warn of objects with many or large versions and of folders with many folders in BUCKET, as MinIO's scanner does.

    The warnings are events and go where rules lead them, such as those of `--event scanner`. What is found again on the
    same day, with the same numbers, is not told again. BUCKETWIRE_TOKEN is sent with the events. Credentials for the
    bucket are found as boto3 finds them.
    """
    source = options.listed(listing, listed_at, inventory, endpoint)
    shell = CommandContext(as_json=as_json)
    try:
        from spark_jobs.api_client import Api  # noqa: PLC0415 - as above
        from spark_jobs.jobs import scan as job  # noqa: PLC0415 - --help needs no Spark
    except ImportError as missing:
        raise options.not_installed(missing) from None
    wanted = job.ScanConfig(
        bucket=bucket,
        endpoint=endpoint,
        versions=versions,
        **source,
        limits=job.Limits(many_versions, large_versions, big_prefix),
        rate=rate,
    )
    with options.spark(shell, f"bucketwire scan {bucket}") as spark:
        if dry_run:
            found, problem = job.look(spark, wanted)
        else:
            result = job.scan(spark, wanted, Api(*options.api_place(shell, url)), now_ms())
            problem = result.problem
    if problem:
        click.echo(problem, err=True)
    if dry_run:
        shell.rows(found, _COLUMNS, "nothing is too much")
        return
    told = result.receipt.get("recorded", 0) + result.receipt.get("spooled", 0)
    names = ", ".join(f"{count:,} {name}" for name, count in result.found.items() if count) or "nothing is too much"
    sentence = f"{count_noun(sum(result.found.values()), 'warning')} ({names}), {told:,} of them new"
    if lost := result.receipt.get("discarded", 0):
        sentence += f"; full queues discarded {lost:,}"
    shell.done(sentence, **result.found, receipt=dict(result.receipt), problem=problem)
