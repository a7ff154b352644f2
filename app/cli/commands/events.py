"""`bucketwire events BUCKET KEY`: what happened to an object, and where each event stands."""

import click
import orjson

from app.cli.context import CommandContext, with_context_or_url
from app.cli_common.param_types import iso
from app.events.trace import fields
from app.outbox.delivery.object_history import DeliveryState


@click.command()
@click.argument("bucket")
@click.argument("key")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 10_000), help="The last so many.")
@with_context_or_url
def events(context: CommandContext, bucket: str, key: str, limit: int) -> None:
    """Show an object's events, oldest first, and where each stands at each of its targets."""
    rows = [
        {
            "id": event.event_id,
            "seq": event.seq,
            "name": event.name,
            "version": event.version,
            "time": iso(event.time),
            "received_at": iso(event.received_at),
            "targets": [
                {"target": str(each.target), "state": each.state, "reason": each.reason}
                for each in event.delivery_states
            ],
            "standing": "; ".join(map(_standing, event.delivery_states)) or "no rule named a target",
            **dict(fields(event.trace)),
            "record": orjson.loads(event.record),
        }
        for event in context.history(bucket, key, limit)
    ]
    columns = {"received": "received_at", "event": "name", "version": "version", "id": "id", "standing": "standing"}
    context.rows(
        rows, columns, f"the log has no event of {bucket}/{key}; it keeps them as long as BUCKETWIRE_RETENTION"
    )


def _standing(standing: DeliveryState) -> str:
    reason = f" ({standing.reason})" if standing.reason else ""
    return f"{standing.target} {standing.state}{reason}"
