"""`bucketwire audit`: who changed what, when and from where."""

from typing import Any

import click
import orjson

from app.cli.context import CommandContext, with_api
from app.cli_common.output import Columns
from app.cli_common.param_types import TIME
from app.resources.audit_entry import AuditEntry
from app.resources.declaration import format_time

_TIMES = ("since", "before", "expires_at")  # details that are milliseconds since 1970


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
    context.rows(context.api.pages("/v1/audit", "entries", limit=limit, **filters), COLUMNS, "no changes")


def _summary(entry: dict[str, Any]) -> str:
    return "; ".join(f"{name} {_detail(name, value)}" for name, value in entry["details"].items())


def _detail(name: str, value: object) -> str:
    if name in _TIMES and isinstance(value, int):
        return str(format_time(value))
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return value if isinstance(value, str) else orjson.dumps(value).decode()


COLUMNS: Columns = {**AuditEntry.columns, "details": _summary}
