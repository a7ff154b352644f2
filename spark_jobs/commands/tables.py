"""`bucketwire tables`: keep the journal and the inventory of buckets as Iceberg tables."""

import click

from app.cli_common import CommandError
from app.cli_common.context import ServiceContext
from app.outbox.engine.database import now_ms
from app.quantities import count_noun
from spark_jobs import runs
from spark_jobs.commands import options

_SESSION = "bucketwire tables"


@click.command()
@click.option(
    "--maintain/--no-maintain", default=None,
    help="Rewrite small files and delete old snapshots. [default: once a day]",
)  # fmt: skip
@click.option("--scheduled", is_flag=True, hidden=True, help="A run by the schedule; ends with its input.")
@options.with_context
def tables(context: ServiceContext, maintain: bool | None, scheduled: bool) -> None:
    """Add the new events of the log to the Iceberg tables `journal` and `inventory` of BUCKETWIRE_TABLES_WAREHOUSE.

    A run continues where the last one ended, also if that was killed: no event is lost or doubled.
    """
    with options.spark_imports():
        from spark_jobs.iceberg import Warehouse  # noqa: PLC0415 - --help needs no Spark
        from spark_jobs.jobs import tables  # noqa: PLC0415 - as above
        from spark_jobs.jobs import tables as job  # noqa: PLC0415 - as above
        from spark_jobs.runs import recorded_tables  # noqa: PLC0415 - as above
    if scheduled:
        runs.end_with_input()
    settings, warehouse = context.settings, Warehouse.of(context.settings)
    database = context.database  # fail before Spark starts if there is none
    with warehouse.locked(), recorded_tables(database) as report:
        end_java = options.launch_spark(context, _SESSION, warehouse.libraries)
        with options.spark_session(context, _SESSION, warehouse.libraries) as spark:
            warehouse.open(spark)
            opened = job.Tables(spark, connections=settings.spark_connections)
            result = job.update(opened, database, int(settings.retention * 1000))
            report(job.describe_gaps(result.gaps) if result.gaps else "")
            if maintain or (maintain is None and tables.is_due(opened, now_ms())):
                tables.maintain(opened, int(settings.tables_history * 1000))
    sentence = f"{count_noun(result.events, 'event')} added, {count_noun(result.keys, 'key')} changed"
    context.done(
        f"{sentence}; up to position {result.position} of the log; {warehouse.place}",
        events=result.events,
        keys=result.keys,
        position=result.position,
        gaps=list(result.gaps),
        warehouse=warehouse.place,
    )
    end_java()
    if result.gaps:  # what there is has been added, and later runs go on from there; but somebody has to know
        raise CommandError(job.describe_gaps(result.gaps))
