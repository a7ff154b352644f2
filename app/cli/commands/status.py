"""`bucketwire status`: the counters of every target."""

from typing import Any

import click

from app.ages import format_age
from app.cli.context import CommandContext, with_context_or_url
from app.cli_common.param_types import iso
from app.config.api_settings import SyncEvents, is_sync, sync_events
from app.outbox.delivery.counters import TargetStatus, read_status
from app.outbox.engine.database import now_ms
from app.outbox.service_settings import read_api_settings


@click.command()
@with_context_or_url
def status(context: CommandContext) -> None:
    """Show the state and the counters of every target.

    matched = recorded + discarded, and recorded = delivered + superseded + pending + parked + dead + purged.
    """
    rows = _remote_rows(context.remote.described) if context.remote else _local_rows(context)
    names = ("state", "mode", "recorded", "delivered", "superseded", "pending", "parked", "dead", "purged", "discarded")
    columns = {"target": "target"} | {name: name for name in names} | {"oldest undelivered": "waiting"}
    context.rows(rows, columns, "no targets; add one: `bucketwire target set TYPE:NAME KEY=VALUE …`")


def _local_rows(context: CommandContext) -> list[dict[str, Any]]:
    with context.database.snapshot() as connection:
        statuses = read_status(connection)
        service = sync_events(context.settings.sync_events, read_api_settings(connection))
    now = now_ms()
    return [_row(status, context.settings.region, service, now) for status in statuses]


def _row(status: TargetStatus, region: str, service: SyncEvents, now: int) -> dict[str, Any]:
    stored, counters = status.stored, status.counters
    return {
        "target": str(stored.target),
        "arn": stored.target.arn(region),
        "state": stored.state,
        "mode": "sync" if is_sync(stored.values, service) else "async",
        "matched": counters.matched,
        "recorded": counters.recorded,
        "delivered": counters.delivered,
        "superseded": counters.superseded,
        "pending": counters.pending,
        "parked": counters.parked,
        "dead": counters.dead,
        "purged": counters.purged,
        "discarded": counters.discarded,
        "oldest": iso(counters.oldest),
        "waiting": format_age(counters.oldest, now),
    }


def _remote_rows(described: list[dict[str, Any]]) -> list[dict[str, Any]]:
    now = now_ms()
    rows = []
    for each in described:
        oldest = 0 if each["oldest_age"] is None else now - int(each["oldest_age"] * 1000)
        identity = {"target": f"{each['type']}:{each['name']}", "arn": each["arn"], "state": each["state"]}
        identity["mode"] = each["mode"]
        rows.append(identity | each["events"] | {"oldest": iso(oldest), "waiting": format_age(oldest, now)})
    return rows
