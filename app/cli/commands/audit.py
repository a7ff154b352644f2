"""`bucketwire audit`: who changed what, when and from where."""

from typing import Any

import click
import orjson

from app.cli.context import CommandContext, with_context_or_url
from app.cli_common.param_types import TIME, iso
from app.config.errors import did_you_mean
from app.outbox.audit import ACTIONS, KINDS, AuditFilter, Entry, actions_of
from app.outbox.markers import NEVER

_TIMES = ("since", "before")  # details that are milliseconds since 1970


@click.command()
@click.option("--since", type=TIME, help="Changes since this time, such as 2h or 2026-11-21T14:00:00Z.")
@click.option("--before", type=TIME, help="Changes before this time.")
@click.option("--actor", default="", help="Changes by this actor, such as token:console or user:alice@host.")
@click.option("--action", default="", help=f"Only this action, or all of one kind: {', '.join(KINDS)}.")
@click.option("--resource", default="", help="Changes of this, such as target:webhook:audit or bucket:images.")
@click.option(
    "--limit",
    default=100,
    show_default=True,
    type=click.IntRange(1, 100_000),
    help="The most changes to show.",
)
@with_context_or_url
def audit(
    context: CommandContext, since: int | None, before: int | None, actor: str, action: str, resource: str, limit: int
) -> None:
    """Show the changes of targets, rules, tokens, replays and dead letters, newest first.

    Changes by commands on the database have the operating system's user and host as their actor.
    """
    actions = actions_of(action)
    if action and not actions:
        hint = did_you_mean(action, [*ACTIONS, *KINDS])
        raise click.BadParameter(f"{action!r} is unknown; {hint}", param_hint="--action")
    which = AuditFilter(since or 0, before or NEVER, actor, actions, resource)
    columns = {
        "time": "at", "actor": "actor", "address": "address", "action": "action", "resource": "resource", "via": "via",
        "details": "summary",
    }  # fmt: skip
    context.rows([_row(entry) for entry in context.audit(which, action, limit)], columns, "no changes")


def _row(entry: Entry) -> dict[str, Any]:
    return {
        "id": entry.entry_id,
        "at": iso(entry.at),
        "actor": entry.actor.name,
        "address": entry.actor.address,
        "via": entry.actor.via,
        "operation": entry.actor.operation,
        "action": entry.action,
        "resource": entry.resource,
        "details": dict(entry.details),
        "summary": "; ".join(f"{name} {_summary(name, value)}" for name, value in entry.details.items()),
    }


def _summary(name: str, value: object) -> str:
    if name in _TIMES and isinstance(value, int):
        return str(iso(value))
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return value if isinstance(value, str) else orjson.dumps(value).decode()
