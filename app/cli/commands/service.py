"""`bucketwire status`, `process …` and `audit`: show the state of the service, its processes, and who changed what."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click
import orjson

from app.cli.context import CommandContext, named_path, target_name, with_api
from app.cli.groups import Group
from app.cli_common.output import Columns, mending_command, printable
from app.cli_common.param_types import TIME
from app.quantities import format_seconds
from app.resources.declaration import format_time
from app.resources.service import AuditEntry, Process
from app.resources.target import urgency

DISPENSABLE = ("mode", "superseded", "purged", "recorded", "delivered")  # beside what waits or is lost
_COUNTERS = ("recorded", "delivered", "superseded", "pending", "parked", "dead", "purged", "discarded")
_NONE = "no process is there; start all of them: `bucketwire up`"
_TIMES = ("since", "before", "expires_at")  # details that are milliseconds since 1970


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
    context.rows(targets, STATUS_COLUMNS, nothing, dispensable=DISPENSABLE)
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


STATUS_COLUMNS: Columns = {
    "target": target_name, "state": "state", "mode": "mode", **{name: _counter(name) for name in _COUNTERS},
    "oldest waiting": _oldest,
}  # fmt: skip


@click.group(cls=Group)
def process() -> None:
    """List the service's processes, and forget those that fell silent."""


@process.command()
@with_api
def ls(context: CommandContext) -> None:
    """List API, beat and workers: version, what each serves and does, last heartbeat; also those that are missed."""
    context.rows(context.api.get("/v1/processes")["processes"], Process.columns, _NONE)


@process.command()
@click.argument("host")
@with_api
def forget(context: CommandContext, host: str) -> None:
    """Forget the processes of a host that fell silent, because it was removed, and an API that ended.

    They are missed no more. One that is there after all is listed again with its next heartbeat.
    """
    path = named_path("/v1/processes", host, f"no process of {host!r} is silent; `bucketwire process ls` lists them")
    context.api.change("DELETE", path)
    context.done(f"forgot the silent processes of {host}", host=host)


@click.command()
@click.option("--since", type=TIME, help="Changes since this time, such as 2h or 2026-11-21T14:00:00Z.")
@click.option("--before", type=TIME, help="Changes before this time.")
@click.option("--actor", help="Changes by this actor, such as token:console or user:alice@host.")
@click.option("--action", help="Only this action, such as target.pause, or all of one kind, such as target.")
@click.option("--resource", help="Changes of this, such as target:webhook:audit or bucket:images.")
@click.option(
    "--limit",
    default=100,
    show_default=True,
    type=click.IntRange(1, 100_000),
    help="The most changes to show.",
)
@with_api
def audit(context: CommandContext, limit: int, **filters: Any) -> None:
    """Show the changes of targets, rules, tokens, replays and dead letters, newest first.

    Changes by commands without --url have the operating system's user and host as their actor.
    """
    context.rows(context.api.pages("/v1/audit", "entries", limit=limit, **filters), AUDIT_COLUMNS, "no changes")


def _summary(entry: dict[str, Any]) -> str:
    return "; ".join(f"{name} {_detail(name, value)}" for name, value in entry["details"].items())


def _detail(name: str, value: object) -> str:
    if name in _TIMES and isinstance(value, int):
        return str(format_time(value))
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return value if isinstance(value, str) else orjson.dumps(value).decode()


AUDIT_COLUMNS: Columns = {**AuditEntry.columns, "details": _summary}
