"""`bucketwire backfill`: tell a target of the objects that a bucket holds already."""

from pathlib import Path

import click

from app.cli.context import CommandContext, bar, count_noun
from app.cli.param_types import TARGET
from app.config.arn import TargetId
from spark_jobs.commands import options


@click.command()
@click.argument("bucket")
@click.option("--target", type=TARGET, required=True, help="The target, as type:name or ARN.")
@options.listing_options
@options.grace_option
@click.option("--limit", type=click.IntRange(1), help="So many events in this run; the next one goes on.")
@click.option("--anew", is_flag=True, help="From the first key on, wherever the last run ended.")
@options.api_options
@click.option(
    "--folder",
    metavar="FOLDER",
    help="Where it keeps how far it has come; reconciliations/ in the service's folder if not.",
)
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
def backfill(
    bucket: str, target: TargetId, endpoint: str, versions: bool | None, listing: str, listed_at: int | None,
    inventory: str, grace: int | None, limit: int | None, anew: bool, rate: float, url: str, folder: str | None,
    as_json: bool,
) -> int:  # fmt: skip
    """Tell TARGET of every object that BUCKET holds already, in the order of keys, as far as its rules ask for it.

    It is for queues and for mirrors that are empty; `reconcile --repair` fills the gaps of one that is not.
    A run that was cut short goes on where it ended when it is started again; what was told already is not told twice.
    BUCKETWIRE_TOKEN is sent with the events. Credentials for the bucket are found as boto3 finds them.
    """
    source = options.listed(listing, listed_at, inventory, endpoint)
    shell = CommandContext(as_json=as_json)
    try:
        from spark_jobs.api_client import Api  # noqa: PLC0415 - as above
        from spark_jobs.jobs import backfill as job  # noqa: PLC0415 - --help needs no Spark
    except ImportError as missing:
        raise options.not_installed(missing) from None
    settings = shell.settings
    wanted = job.BackfillConfig(
        bucket=bucket,
        target=target,
        folder=Path(folder).absolute() if folder else settings.folder / "reconciliations",
        **source,
        versions=versions,
        endpoint=endpoint,
        grace=options.grace(grace, inventory),
        memory=int(settings.retention * 1000),
        rate=rate,
        most=limit,
        anew=anew,
    )
    try:
        shell.registry.target(target)  # what is wrong with these is told before Spark starts
        api = Api(*options.api_place(shell, url))
        with options.spark(shell, f"bucketwire backfill {bucket}") as spark, bar(shell) as shown:
            task = shown.add_task("listing", total=None)
            result = job.backfill(
                spark, shell.database, shell.registry, wanted, api,
                lambda done, total: shown.update(task, description=bucket, completed=done, total=total),
            )  # fmt: skip
    finally:
        shell.close()
    if result.problem:
        click.echo(result.problem, err=True)
    told, left = count_noun(result.counts["repaired"], "object"), result.counts["in_flight"]
    sentence = f"{result.state}: {target} was told of {told}"
    if again := result.counts["held"]:
        sentence += f", {again:,} more were told before"
    if left:
        sentence += f", {left:,} were left to events of their own"
    if result.state == "unfinished":
        sentence += "; start it again to go on"
    shell.done(sentence, state=result.state, after=result.after, problem=result.problem, **result.counts)
    return int(result.state == "unfinished" and limit is None)
