"""`bucketwire status`: the counters of every target."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click

from app.cli.client import target_name
from app.cli.context import CommandContext, with_api
from app.cli_common.output import Columns, mending_command, printable
from app.quantities import format_seconds
from app.resources.target import urgency

DISPENSABLE = ("mode", "superseded", "purged", "recorded", "delivered")  # beside what waits or is lost
_COUNTERS = ("recorded", "delivered", "superseded", "pending", "parked", "dead", "purged", "discarded")


@click.command()
@with_api
def status(context: CommandContext) -> None:
    """Show what needs attention, and the state and the counters of every target, those with problems first.

    matched = recorded + discarded, and recorded = delivered + superseded + pending + parked + dead + purged. Exit code
    1 on a problem.
    """
    targets = context.api.get("/v1/targets")["targets"]
    findings = context.api.get("/v1/doctor")["findings"]
    _show_findings(findings)
    if not context.as_json:
        targets.sort(key=lambda target: urgency(target["state"]))
    nothing = "no targets; add one: `bucketwire target set TYPE:NAME KEY=VALUE …`"
    context.rows(targets, COLUMNS, nothing, dispensable=DISPENSABLE)
    click.get_current_context().exit(1 if any(finding["grade"] == "problem" for finding in findings) else 0)


def _show_findings(findings: Iterable[Mapping[str, Any]]) -> None:
    """Print on standard error what needs attention, the worst first; an empty line sets it off from what follows."""
    urgent = [finding for finding in findings if finding["grade"] in ("problem", "warning")]
    for finding in urgent:
        click.echo(f"{finding['grade']}: {finding['subject']}: {printable(finding['text'])}", err=True)
        if command := mending_command(finding["text"], finding["command"]):
            click.echo(f"  {command}", err=True)
    if urgent:
        click.echo(err=True)


def _counter(name: str) -> Callable[[Mapping[str, Any]], int]:
    return lambda target: int(target["events"][name])


def _oldest(target: Mapping[str, Any]) -> str:
    return "" if target["oldest_age"] is None else format_seconds(target["oldest_age"])


COLUMNS: Columns = {
    "target": target_name, "state": "state", "mode": "mode", **{name: _counter(name) for name in _COUNTERS},
    "oldest waiting": _oldest,
}  # fmt: skip
