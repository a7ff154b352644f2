"""`bucketwire backfill|scan|tables`, and `reconcile run`: they become Spark jobs, which app never imports."""

from collections.abc import Callable

import click

JOBS = "spark_jobs"  # the only link from app to the jobs: a module name that Python runs


def _job(usage: str) -> Callable[[Callable[[tuple[str, ...]], None]], click.Command]:
    """Define a command that passes all arguments, also `--help`, to the job."""
    arguments = click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar=usage)
    return lambda function: click.command(cls=_Job, add_help_option=False)(arguments(function))


class _Job(click.Command):
    """Pass every argument unchanged: click would remove the `--` after which a name may begin with a hyphen."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take every argument as it is."""
        ctx.params["arguments"], ctx.args = tuple(args), []
        return []


def _exec_job(*arguments: str) -> None:
    from app.cli.commands import processes  # noqa: PLC0415 - slow, and `reconcile ls` does not need it

    processes.exec_process([JOBS, *arguments])


@_job("BUCKET --target TYPE:NAME …")
def run(arguments: tuple[str, ...]) -> None:
    """Compare a target's contents with a bucket's listing; --repair corrects the drift.

    Needs the extra `spark` of the installation, and Java 17 or newer; --help shows every option.
    """
    _exec_job("reconcile", "run", *arguments)


@_job("BUCKET --target TYPE:NAME …")
def backfill(arguments: tuple[str, ...]) -> None:
    """Send a target an event for every existing object of a bucket. Run again, it continues where it stopped.

    Needs the extra `spark` of the installation, and Java 17 or newer; --help shows every option.
    """
    _exec_job("backfill", *arguments)


@_job("BUCKET …")
def scan(arguments: tuple[str, ...]) -> None:
    """Send events for objects with many or large versions and for large folders. MinIO's scanner sends the same.

    Needs the extra `spark` of the installation, and Java 17 or newer; --help shows every option.
    """
    _exec_job("scan", *arguments)


@_job("[--maintain]")
def tables(arguments: tuple[str, ...]) -> None:
    """Add new events to Iceberg tables. They are a journal of all events, and an inventory of all objects and versions.

    Needs the extra `spark` of the installation, and Java 17 or newer; --help shows every option.
    """
    _exec_job("tables", *arguments)
