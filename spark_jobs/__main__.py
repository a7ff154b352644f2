"""Dispatch `python -m spark_jobs …`; `bucketwire reconcile run`, `backfill`, `scan` and `tables` exec it."""

import click

from app.cli_common.run import run_command
from app.outbox.errors import AlreadyRunning
from spark_jobs import runs
from spark_jobs.commands.backfill import backfill
from spark_jobs.commands.reconcile import run
from spark_jobs.commands.scan import scan
from spark_jobs.commands.tables import tables
from spark_jobs.commands.watched_bucket import watched_bucket
from spark_jobs.errors import describe_error


@click.group()
def jobs() -> None:
    """Jobs that run on Spark."""


@jobs.group()
def reconcile() -> None:
    """Reconciliations."""


reconcile.add_command(run)
for command in (backfill, scan, tables, watched_bucket):
    jobs.add_command(command)


if __name__ == "__main__":
    runs.end_on_sigterm()
    run_command(jobs, describe=describe_error, temporary=AlreadyRunning)
