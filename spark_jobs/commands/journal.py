"""`bucketwire journal`: keep a journal of operations in Parquet, and write reports of it."""

from pathlib import Path

import click

from app.cli_common.context import ServiceContext
from app.cli_common.errors import CommandError
from app.cli_common.output import count_noun
from app.cli_common.param_types import TARGET, TIME
from app.config.arn import TargetId
from app.outbox.engine.database import now_ms
from spark_jobs.commands import options

_target_option = click.option(
    "--target", type=TARGET, help="A target of format access; by default the service's own event log."
)
_folder_option = click.option(
    "--folder", metavar="FOLDER", help="The folder of journals; by default journal/ in the data directory."
)


@click.group()
def journal() -> None:
    """Keep a journal of operations in Parquet, and write reports of it."""


@journal.command()
@_target_option
@_folder_option
@click.option("--since", type=TIME, help="Read only newer events: 2d, or 2026-11-21T00:00:00Z.")
@options.with_context
def compact(context: ServiceContext, target: TargetId | None, folder: str | None, since: int | None) -> None:
    """Add the events of the log, or the entries of a target, to a journal in Parquet, partitioned by day and bucket.

    Events that the journal already has are not written again; they stay when the log has deleted them. Nothing is
    removed from the log or the target. Entries that are not events are counted and quarantined.
    """
    with options.spark_imports():
        from spark_jobs.jobs import journal_compact as job  # noqa: PLC0415 - --help needs no Spark
    if target:
        context.registry.target(target)  # fail before Spark starts if the target is unknown
    with options.spark_session(context, "bucketwire journal compact") as spark:
        result = job.compact(
            spark, context.database, context.registry, _journals(context, folder), target, since=since or 0
        )
    if result.quarantined:
        click.echo(f"{result.quarantined:,} entries quarantined: they are not events", err=True)
    context.done(
        f"{count_noun(result.events, 'event')} read, {result.written:,} of them new; {result.folder}",
        events=result.events,
        written=result.written,
        quarantined=result.quarantined,
        folder=str(result.folder),
    )


@journal.command()
@_target_option
@_folder_option
@click.option("--since", type=TIME, help="Only operations since then: 7d, or 2026-11-21T00:00:00Z.")
@click.option("--before", type=TIME, help="Only operations before then.")
@click.option("--bucket", default="", help="Only operations on this bucket.")
@click.option(
    "--output", metavar="FOLDER", help="A new folder for the report; by default one in reports/ of the journal."
)
@options.with_context
def report(
    context: ServiceContext, target: TargetId | None, folder: str | None, since: int | None, before: int | None,
    bucket: str, output: str | None,
) -> None:  # fmt: skip
    """Report operations by bucket, hour, user and type: a page with charts, tables as Parquet and CSV."""
    with options.spark_imports():
        from spark_jobs.jobs.journal_compact import EVENTS, journal_folder, read_journal  # noqa: PLC0415 - as above
        from spark_jobs.reports import journal_report as job  # noqa: PLC0415 - --help needs no Spark
    source, created_at = journal_folder(_journals(context, folder), target), now_ms()
    if not (source / EVENTS).is_dir():
        raise CommandError(f"there is no journal at {source}; `bucketwire journal compact` creates it")
    destination = Path(output).absolute() if output else source / "reports" / f"{created_at}"
    if destination.exists():
        raise CommandError(f"{destination} already exists; name a new folder")
    with options.spark_session(context, "bucketwire journal report") as spark:
        selected = job.select(read_journal(spark, source), since=since or 0, before=before or 0, bucket=bucket)
        result = job.write(
            selected, destination, source=str(target) if target else "the event log", created_at=created_at
        )
    context.done(
        f"{count_noun(result.operations, 'operation')}; {result.page}",
        operations=result.operations,
        page=str(result.page),
    )


def _journals(context: ServiceContext, folder: str | None) -> Path:
    return Path(folder).absolute() if folder else context.settings.folder / "journal"
