"""`bucketwire reconciliation …`: start and cancel reconciliations on a Spark worker, and show what they found."""

from typing import Any

import click

from app.cli.context import CommandContext, with_context_or_url
from app.cli_common.output import columns
from app.cli_common.param_types import TARGET, iso
from app.config.arn import TargetId
from app.outbox.reconcile.runs import Reconciliation
from app.resources.drift import DRIFT_KINDS

_COLUMNS = (
    "run",
    "target",
    "bucket",
    "job",
    "state",
    "started_at",
    *DRIFT_KINDS,
    "repaired",
    "problem",
)


@click.group()
def reconciliation() -> None:
    """Start reconciliations on a Spark worker, cancel them, and show what they found."""


@reconciliation.command()
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 1000), help="Show this many runs.")
@with_context_or_url
def ls(context: CommandContext, limit: int) -> None:
    """List the last runs, newest first."""
    runs = [_row(run) for run in context.reconciliations.list(limit=limit)]
    context.rows(runs, columns(*_COLUMNS), "nothing was reconciled yet")


@reconciliation.command()
@click.argument("target", type=TARGET)
@click.argument("bucket")
@click.option("--repair", is_flag=True, help="Repair the drift that it finds.")
@with_context_or_url
def start(context: CommandContext, target: TargetId, bucket: str, repair: bool) -> None:
    """Have a `bucketwire worker --only spark` compare TARGET with BUCKET."""
    run = context.reconciliations.start(target, bucket, repair=repair)
    context.done(f"{run.run} waits for a `bucketwire worker --only spark`", **_row(run))


@reconciliation.command()
@click.argument("run")
@with_context_or_url
def repair(context: CommandContext, run: str) -> None:
    """Compare again what RUN compared, which found drift, and repair what differs then."""
    begun = context.reconciliations.repair(run)
    context.done(f"{begun.run} waits for a `bucketwire worker --only spark`", **_row(begun))


@reconciliation.command()
@click.argument("run")
@with_context_or_url
def cancel(context: CommandContext, run: str) -> None:
    """Cancel RUN if it waits or runs. Repairs that it has made are kept."""
    ended = context.reconciliations.cancel(run)
    context.done(f"{ended.run} is {ended.state}", **_row(ended))


@reconciliation.command()
@click.argument("run")
@click.option("--kind", type=click.Choice(DRIFT_KINDS), help="Only those of this kind.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 10_000), help="Show this many.")
@with_context_or_url
def findings(context: CommandContext, run: str, kind: str | None, limit: int) -> None:
    """Show the differences that RUN found: the first 10,000, all of them are in its report."""
    found = context.reconciliations.findings(run, kind=kind or "", limit=limit)
    rows = [{"number": one.number, **one.facts} for one in found]
    context.rows(rows, columns("number", "kind", "key", "differs"), "no difference is stored")


def _row(run: Reconciliation) -> dict[str, Any]:
    return {
        "run": run.run,
        "target": str(run.target),
        "bucket": run.bucket,
        "job": run.job,
        "state": run.state,
        "repair": run.repair,
        "started_at": iso(run.started_at),
        "finished_at": iso(run.finished_at),
        **run.counts,
        "report": run.report,
        "problem": run.problem,
    }
