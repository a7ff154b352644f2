"""`bucketwire events BUCKET KEY`: an object's events and their delivery states."""

import click
import orjson

from app.cli.context import CommandContext, with_context_or_url
from app.cli_common.param_types import iso
from app.events.trace import fields
from app.outbox.delivery.event_states import DeliveryState

_ACTIONS = ("add", "list", "ls", "remove", "rm")  # of `mc event`, which was `mc events` until 2018


class _History(click.Command):
    """`events`, which mentions rules before it parses their options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. Raises `click.UsageError` for what belongs to `bucketwire event`."""
        if args and args[0] in _ACTIONS and "--history" not in args:
            raise click.UsageError(
                f"rules are the business of `bucketwire event {args[0]} …`; to see the events of an object in a bucket "
                f"that is called {args[0]}, add --history",
                ctx,
            )
        return super().parse_args(ctx, args)


@click.command(cls=_History)
@click.argument("bucket")
@click.argument("key")
@click.option(
    "--limit", default=100, show_default=True, type=click.IntRange(1, 10_000), help="Show this many of the last events."
)
@click.option(
    "--history", "_history", is_flag=True, help="Needed for a bucket that is called add, list, ls, remove or rm."
)
@with_context_or_url
def events(context: CommandContext, bucket: str, key: str, limit: int, _history: bool) -> None:
    """Show an object's events, oldest first, and their delivery state at each target."""
    rows = [
        {
            "id": event.event_id,
            "seq": event.seq,
            "name": event.name,
            "version": event.version,
            "time": iso(event.time),
            "received_at": iso(event.received_at),
            "targets": [
                {"target": str(delivery.target), "state": delivery.state, "reason": delivery.reason}
                for delivery in event.delivery_states
            ],
            "delivery_state": "; ".join(map(_format_state, event.delivery_states)) or "no rule named a target",
            **dict(fields(event.trace)),
            "record": orjson.loads(event.record),
        }
        for event in context.history(bucket, key, limit)
    ]
    columns = {
        "received": "received_at", "event": "name", "version": "version", "id": "id",
        "delivery state": "delivery_state",
    }  # fmt: skip
    context.rows(
        rows, columns, f"no events of {bucket}/{key} in the event log; BUCKETWIRE_RETENTION sets how long it keeps them"
    )


def _format_state(delivery: DeliveryState) -> str:
    reason = f" ({delivery.reason})" if delivery.reason else ""
    return f"{delivery.target} {delivery.state}{reason}"
