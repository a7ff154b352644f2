"""`bucketwire events BUCKET KEY`: an object's events and their delivery states."""

from typing import Any

import click
import orjson

from app.cli.context import CommandContext, with_context_or_url
from app.cli_common.output import columns
from app.cli_common.param_types import iso
from app.events.trace import fields
from app.outbox.delivery.attempts import Attempt
from app.outbox.delivery.event_states import DeliveryState, RecordedEvent

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
@click.option("--attempts", is_flag=True, help="Show the recorded attempts at each event instead.")
@with_context_or_url
def events(context: CommandContext, bucket: str, key: str, limit: int, _history: bool, attempts: bool) -> None:
    """Show an object's events, oldest first, and their delivery state at each target."""
    history = context.history(bucket, key, limit)
    nothing = f"no events of {bucket}/{key} in the event log; BUCKETWIRE_RETENTION sets how long it keeps them"
    if attempts:
        found = [event for each in history if (event := context.event(each.event_id)) is not None]
        rows = [_attempt_row(event, *each) for event in found for each in _attempts(event)]
        headers = ("at", "event", "id", "target", "outcome", "events", "attempt", "seconds", "reason")
        context.rows(rows, columns(*headers), "no attempt is on record" if history else nothing)
        return
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
        for event in history
    ]
    shown = {
        "received": "received_at", "event": "name", "version": "version", "id": "id",
        "delivery state": "delivery_state",
    }  # fmt: skip
    context.rows(rows, shown, nothing)


def _attempts(event: RecordedEvent) -> list[tuple[DeliveryState, Attempt]]:
    made = [(state, attempt) for state in event.delivery_states for attempt in state.timeline]
    return sorted(made, key=lambda pair: pair[1].at)


def _attempt_row(event: RecordedEvent, state: DeliveryState, attempt: Attempt) -> dict[str, Any]:
    return {
        "at": iso(attempt.at),
        "event": event.name,
        "id": event.event_id,
        "target": str(state.target),
        "outcome": attempt.outcome,
        "events": attempt.events,
        "attempt": attempt.attempt or None,
        "seconds": attempt.duration / 1000,
        "replay": attempt.replay_id or None,
        "reason": attempt.reason,
    }


def _format_state(delivery: DeliveryState) -> str:
    reason = f" ({delivery.reason})" if delivery.reason else ""
    return f"{delivery.target} {delivery.state}{reason}"
