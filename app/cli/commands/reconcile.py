"""`bucketwire reconcile|backfill|scan|journal`: they become the jobs on Spark, which nothing in app imports."""

from collections.abc import Callable

import click

from app.cli.commands.processes import exec_process

JOBS = "spark_jobs"  # the one seam between app and the jobs: a name that Python runs


def _job(usage: str) -> Callable[[Callable[[tuple[str, ...]], None]], click.Command]:
    """A command whose words, `--help` too, are the job's."""
    arguments = click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar=usage)
    return lambda function: click.command(cls=_Job, add_help_option=False)(arguments(function))


class _Job(click.Command):
    """Hands on every word as it came: click would take away the `--` behind which a name may begin with a hyphen."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.params["arguments"], ctx.args = tuple(args), []
        return []


@_job("BUCKET --target TYPE:NAME …")
def reconcile(arguments: tuple[str, ...]) -> None:
    """Compare what a target holds with what a bucket holds; --repair sets it right.

    Needs pip install 'bucketwire[spark]' and Java 17; --help shows every option.
    """
    exec_process([JOBS, "reconcile", *arguments])


@_job("BUCKET --target TYPE:NAME …")
def backfill(arguments: tuple[str, ...]) -> None:
    """Tell a target of every object that a bucket holds already; started again, it goes on where it ended.

    Needs pip install 'bucketwire[spark]' and Java 17; --help shows every option.
    """
    exec_process([JOBS, "backfill", *arguments])


@_job("BUCKET …")
def scan(arguments: tuple[str, ...]) -> None:
    """Warn of objects with many or large versions and of folders with many folders, as MinIO's scanner does.

    Needs pip install 'bucketwire[spark]' and Java 17; --help shows every option.
    """
    exec_process([JOBS, "scan", *arguments])


@_job("compact|report …")
def journal(arguments: tuple[str, ...]) -> None:
    """Keep what was done in Parquet by day and bucket (compact); tell of it by bucket, hour, user and type (report).

    Needs pip install 'bucketwire[spark]' and Java 17; --help shows every option.
    """
    exec_process([JOBS, "journal", *arguments])
