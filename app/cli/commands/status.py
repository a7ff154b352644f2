"""`bucketwire status`: the counters of every target."""

from typing import Any

import click

from app.cli.context import CommandContext, with_context_or_url
from app.cli_common.param_types import format_age, iso
from app.outbox.delivery.counters import read_counters, snapshot
from app.outbox.engine.database import now_ms


@click.command()
@with_context_or_url
def status(context: CommandContext) -> None:
    """Show the state and the counters of every target.

    matched = recorded + discarded, and recorded = delivered + superseded + pending + parked + dead + purged.
    """
    rows = _remote_rows(context.remote.described) if context.remote else _local_rows(context)
    names = ("state", "recorded", "delivered", "superseded", "pending", "parked", "dead", "purged", "discarded")
    columns = {"target": "target"} | {name: name for name in names} | {"oldest undelivered": "waiting"}
    context.rows(rows, columns, "no targets; add one: `bucketwire target set TYPE:NAME KEY=VALUE …`")


def _local_rows(context: CommandContext) -> list[dict[str, Any]]:
    stored = {row.target: row for row in context.registry.targets()}
    with snapshot(context.database) as connection:
        counters = read_counters(connection)
    now = now_ms()
    return [
        {
            "target": str(each.target),
            "arn": each.target.arn(context.settings.region),
            "state": stored[each.target].standing[0],
            "matched": each.matched,
            "recorded": each.recorded,
            "delivered": each.delivered,
            "superseded": each.superseded,
            "pending": each.pending,
            "parked": each.parked,
            "dead": each.dead,
            "purged": each.purged,
            "discarded": each.discarded,
            "oldest": iso(each.oldest),
            "waiting": format_age(each.oldest, now),
        }
        for each in counters
        if each.target in stored  # else it was created a moment ago
    ]


def _remote_rows(described: list[dict[str, Any]]) -> list[dict[str, Any]]:
    now = now_ms()
    rows = []
    for each in described:
        oldest = 0 if each["oldest_age"] is None else now - int(each["oldest_age"] * 1000)
        identity = {"target": f"{each['type']}:{each['name']}", "arn": each["arn"], "state": each["state"]}
        rows.append(identity | each["events"] | {"oldest": iso(oldest), "waiting": format_age(oldest, now)})
    return rows
