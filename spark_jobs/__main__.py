"""Dispatch `python -m spark_jobs …`; `bucketwire reconcile`, `backfill`, `scan` and `journal` exec this module."""

import click

from app.cli_common.run import run_command
from app.outbox.reconcile.runs import AlreadyRunning
from spark_jobs import shutdown
from spark_jobs.commands.backfill import backfill
from spark_jobs.commands.journal import journal
from spark_jobs.commands.reconcile import reconcile
from spark_jobs.commands.scan import scan
from spark_jobs.errors import describe_error


@click.group()
def jobs() -> None:
    """Jobs that run on Spark."""


for command in (backfill, scan, journal, reconcile):
    jobs.add_command(command)


if __name__ == "__main__":
    shutdown.on_sigterm()
    run_command(jobs, describe=describe_error, temporary=AlreadyRunning)
