"""`bucketwire reconcile …`, `backfill`, `scan` and `tables`: compare targets with buckets, and start the Spark jobs.

The latter three, and `reconcile run`, become Spark jobs, which app never imports.
"""

from collections.abc import Callable, Mapping
from typing import Any

import click

from app.cli.context import CommandContext, named_path, with_api
from app.cli.groups import Group
from app.cli_common.param_types import TARGET
from app.config.arn import TargetId
from app.events.buckets import name_at_store
from app.resources.reconciliation import (
    DRIFT_KINDS,
    FORMATS,
    MAX_FINDINGS,
    Finding,
    Reconciliation,
    drift_of,
    finding_line,
)

_PATH = "/v1/reconciliations"
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


@click.group(cls=Group)
def reconcile() -> None:
    """Compare targets with buckets, and repair the drift.

    `run` does it here, `start` on a Spark worker of the service; the others show what was found, and go on with it.
    """


@reconcile.command()
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 1000), help="Show this many runs.")
@with_api
def ls(context: CommandContext, limit: int) -> None:
    """List the last runs, newest first."""
    context.rows(
        context.api.get(_PATH, limit=limit)["reconciliations"], Reconciliation.columns, "nothing was reconciled yet"
    )


@reconcile.command()
@click.argument("target", type=TARGET)
@click.argument("bucket")
@click.option("--repair", is_flag=True, help="Repair the drift that it finds.")
@click.option("--prefix", default="", help="Compare only the keys that begin with this.")
@click.option("--incremental", is_flag=True, help="Compare only the keys that events have named since the last run.")
@click.option("--unknown-bucket", is_flag=True, help="Also if no event, rule, setting or run has named BUCKET.")
@with_api
def start(
    context: CommandContext, target: TargetId, bucket: str, repair: bool, prefix: str, incremental: bool,
    unknown_bucket: bool,
) -> None:  # fmt: skip
    """Have a `bucketwire worker --only spark` compare TARGET with BUCKET."""
    body = {
        "target": str(target), "bucket": bucket, "repair": repair, "prefix": prefix, "incremental": incremental,
        **({"unknown_bucket": True} if unknown_bucket else {}),
    }  # fmt: skip
    begun = context.api.change("POST", _PATH, body)
    context.done(_describe_start(begun), **begun)


@reconcile.command()
@click.argument("run")
@with_api
def repair(context: CommandContext, run: str) -> None:
    """Compare again what RUN compared, which found drift, and repair what differs then."""
    begun = context.api.change("POST", f"{_run_path(run)}/repair")
    context.done(_describe_start(begun), **begun)


@reconcile.command()
@click.argument("run")
@with_api
def cancel(context: CommandContext, run: str) -> None:
    """Cancel RUN if it waits or runs. Repairs that it has made are kept."""
    ended = context.api.change("POST", f"{_run_path(run)}/cancel")
    context.done(f"{ended['id']} is {ended['state']}", **ended)


@reconcile.command()
@click.argument("run")
@click.option("--kind", type=click.Choice(DRIFT_KINDS), help="Only those of this kind.")
@click.option(
    "--limit", type=click.IntRange(1, MAX_FINDINGS), help="Show this many.  [default: 100; with --format all]"
)
@click.option(
    "--format", "form", type=click.Choice(list(FORMATS)),
    help="; ".join(f"{form}: {about}" for form, about in FORMATS.items()) + ".",
)  # fmt: skip
@with_api
def findings(context: CommandContext, run: str, kind: str | None, limit: int | None, form: str | None) -> None:
    """Show the differences that RUN found: the first 10,000, all of them are in its report.

    With --format they are printed as lines for other programs; csv is a manifest of S3 Batch Operations.
    """
    if form:
        _print_lines(context, run, kind, limit or MAX_FINDINGS, form)
        return
    limit = limit or 100
    differences = context.api.pages(f"{_run_path(run)}/findings", "findings", limit=limit, kind=kind)
    context.rows(differences, Finding.columns, "no difference is stored")


reconcile.add_command(run)


def _print_lines(context: CommandContext, run: str, kind: str | None, limit: int, form: str) -> None:
    """Print what a run found, one line each; say so if the service has not kept all of it."""
    shown = context.api.get(_run_path(run))
    bucket, number = name_at_store(shown["bucket"]), 0
    for finding in context.api.each(f"{_run_path(run)}/findings", "findings", limit=limit, kind=kind):
        number += 1
        if line := finding_line(form, bucket, finding):
            click.echo(line)
    found = shown[kind] if kind else drift_of(shown)
    if number < found:
        click.echo(f"{number:,} of {found:,} differences; all of them are in the report: {shown['report']}", err=True)


def _describe_start(run: Mapping[str, Any]) -> str:
    return f"{run['id']} waits: {run['note']}" if run["note"] else f"{run['id']} waits for its turn at a Spark worker"


def _run_path(name: str) -> str:
    missing = f"there is no reconciliation {name}; `bucketwire reconcile ls` lists them"
    return named_path(_PATH, name, missing)
