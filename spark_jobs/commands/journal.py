"""`bucketwire journal`: what was done, kept in Parquet and told in a report."""

from pathlib import Path

import click

from app.cli.context import CommandContext, count_noun
from app.cli.errors import CommandError
from app.cli.param_types import TARGET, TIME
from app.config.arn import TargetId
from app.outbox.engine.database import now_ms
from spark_jobs.commands import options

_target = click.option("--target", type=TARGET, help="A target of format access; the service's own log unless given.")
_folder = click.option(
    "--folder", metavar="FOLDER", help="Where journals are kept; journal/ in the service's folder unless given."
)
_json = click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")


@click.group()
def journal() -> None:
    """Keep what was done in Parquet, and tell of it."""


@journal.command()
@_target
@_folder
@click.option("--since", type=TIME, help="Only what is younger: 2d, or 2026-11-21T00:00:00Z.")
@_json
def compact(target: TargetId | None, folder: str | None, since: int | None, as_json: bool) -> None:
    """Add the log's events, or a target's entries, to a journal in Parquet, divided by day and bucket.

    What is kept already is not written again, and stays when the log has forgotten it. Nothing is taken away from the
    log or the target. Entries that are no events are counted and kept apart.
    """
    shell = CommandContext(as_json=as_json)
    try:
        try:
            from spark_jobs.jobs import journal_compact as job  # noqa: PLC0415 - --help needs no Spark
        except ImportError as missing:
            raise options.not_installed(missing) from None
        if target:
            shell.registry.target(target)  # what is wrong with it is told before Spark starts
        with options.spark(shell, "bucketwire journal compact") as spark:
            done = job.compact(spark, shell.database, shell.registry, _kept(shell, folder), target, since=since or 0)
    finally:
        shell.close()
    sentence = f"{count_noun(done.events, 'event')} read, {done.written:,} of them new; {done.folder}"
    if done.aside:
        click.echo(f"{count_noun(done.aside, 'entry').replace('entrys', 'entries')} set aside: no events", err=True)
    shell.done(sentence, events=done.events, written=done.written, aside=done.aside, folder=str(done.folder))


@journal.command()
@_target
@_folder
@click.option("--since", type=TIME, help="Operations from then on: 7d, or 2026-11-21T00:00:00Z.")
@click.option("--before", type=TIME, help="Operations before then.")
@click.option("--bucket", default="", help="Of this bucket alone.")
@click.option(
    "--output", metavar="FOLDER", help="A new folder for it; one in reports/ beside the journal if not given."
)
@_json
def report(
    target: TargetId | None, folder: str | None, since: int | None, before: int | None, bucket: str,
    output: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Tell of operations by bucket, hour, user and type: a page with charts, tables as Parquet and CSV."""
    shell = CommandContext(as_json=as_json)
    try:
        from spark_jobs.jobs.journal_compact import EVENTS, place  # noqa: PLC0415 - as above
        from spark_jobs.jobs.journal_compact import journal as read  # noqa: PLC0415 - as above
        from spark_jobs.reports import journal_report as job  # noqa: PLC0415 - --help needs no Spark
    except ImportError as missing:
        raise options.not_installed(missing) from None
    kept, made = place(_kept(shell, folder), target), now_ms()
    if not (kept / EVENTS).is_dir():
        raise CommandError(f"there is no journal at {kept} yet; `bucketwire journal compact` makes it")
    place_ = Path(output).absolute() if output else kept / "reports" / f"{made}"
    if place_.exists():
        raise CommandError(f"{place_} is there already; name a folder that is not")
    with options.spark(shell, "bucketwire journal report") as spark:
        asked = job.chosen(read(spark, kept), since=since or 0, before=before or 0, bucket=bucket)
        done = job.write(asked, place_, source=str(target) if target else "the log", made=made)
    shell.done(
        f"{count_noun(done.operations, 'operation')}; {done.page}", operations=done.operations, page=str(done.page)
    )


def _kept(shell: CommandContext, folder: str | None) -> Path:
    return Path(folder).absolute() if folder else shell.settings.folder / "journal"
