"""`bucketwire event …`: an object's events and their delivery states, and one event with what its targets said."""

from typing import Any

import click
import orjson

from app.cli.commands.rules import event_option, names, rule
from app.cli.context import Client, CommandContext, event_path, with_api
from app.cli.groups import Group
from app.cli_common.output import Columns, columns, print_exchange, printable
from app.cli_common.param_types import TARGET, TIME
from app.config.arn import TargetId
from app.resources.declaration import short_target
from app.resources.event import STATES, Event, describe_origin

_MC_ACTIONS = ("add", "list", "ls", "remove", "rm")  # of `mc event`, on rules


class _Events(Group):
    """`event`, which takes the actions of `mc event` too: what they do is `rule`."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of this name, or None."""
        if cmd_name in _MC_ACTIONS:
            return rule.get_command(ctx, cmd_name)
        return super().get_command(ctx, cmd_name)


@click.group(cls=_Events)
def event() -> None:
    """Show the events of an object and where they are.

    The actions of `mc event` on rules work here too: add, list and remove are those of `bucketwire rule`.
    """


@event.command()
@click.argument("bucket")
@click.argument("key")
@click.option(
    "--limit", default=100, show_default=True, type=click.IntRange(1, 10_000), help="Show this many of the last events."
)
@click.option("--attempts", is_flag=True, help="Show the recorded attempts at each event instead.")
@with_api
def history(context: CommandContext, bucket: str, key: str, limit: int, attempts: bool) -> None:
    """Show an object's events, oldest first, and their delivery state at each target."""
    events = _read_history(context.api, bucket, key, limit)
    nothing = f"no events of {bucket}/{key} in the event log; BUCKETWIRE_RETENTION sets how long it keeps them"
    if not attempts:
        context.rows(events, COLUMNS, nothing)
        return
    whole = [context.api.get(f"/v1/events/{event['id']}") for event in events]
    if context.as_json:
        context.json(whole)
        return
    headers = ("at", "event", "id", "target", "outcome", "events", "attempt", "duration", "replay", "reason")
    made = [row for event in whole for row in _attempt_rows(event)]
    context.rows(made, columns(*headers), "no attempt is on record" if events else nothing)


@event.command()
@click.argument("event_id", metavar="ID")
@with_api
def show(context: CommandContext, event_id: str) -> None:
    """Show one event: by what it came, where it stands at each target, and its record.

    Where it failed, it shows what was sent and answered last.
    """
    event = context.api.get(event_path(event_id))
    if context.as_json:
        context.json(event)
        return
    facts = {name: value for name, value in event.items() if name not in ("delivery_states", "origin", "record")}
    context.facts(facts | {"came by": describe_origin(event["origin"]) if "origin" in event else "unknown"})
    for state in event["delivery_states"]:
        click.echo(f"\n{printable(_format_state(state))}")
        print_exchange(state["exchange"])
    click.echo(f"\n{orjson.dumps(event['record'], option=orjson.OPT_INDENT_2).decode()}")


@event.command()
@click.option("--target", type=TARGET, help="Only events for this target.")
@click.option("--state", type=click.Choice(STATES), help="Only those in this delivery state, at the target or at any.")
@click.option("--since", type=TIME, help="Only events recorded since, such as 2h or 2026-11-21T14:00:00Z.")
@click.option("--before", type=TIME, help="Only events recorded before.")
@click.option("--bucket", default="", help="Only events of this bucket.")
@click.option("--prefix", default="", help="Only events of objects whose key has this prefix.")
@event_option(default="")
@click.option(
    "--limit", default=100, show_default=True, type=click.IntRange(1, 100_000), help="Show at most this many."
)
@with_api
def search(
    context: CommandContext, target: TargetId | None, state: str | None, since: int | None, before: int | None,
    bucket: str, prefix: str, event_words: str, limit: int,
) -> None:  # fmt: skip
    """Search the event log, newest first; `discarded` are those that a full queue did not take."""
    chosen = {
        "target": target, "state": state, "since": since, "before": before, "bucket": bucket or None,
        "prefix": prefix or None, "events": names(event_words) or None,
    }  # fmt: skip
    events = context.api.pages("/v1/events", "events", limit=limit, after=0, **chosen)
    nothing = "no event matches; BUCKETWIRE_RETENTION sets how long the log keeps them"
    context.rows(events, {**Event.columns, "object": _object, **DELIVERY}, nothing, dispensable=("version",))


def _object(event: dict[str, Any]) -> str:
    return f"{event['bucket']}/{event['key']}"


def _read_history(api: Client, bucket: str, key: str, limit: int) -> list[dict[str, Any]]:
    """Return the last `limit` events of an object, oldest first; the pages come newest first."""
    events: list[dict[str, Any]] = []
    after: int | None = 0
    while after is not None and len(events) < limit:
        page = api.get("/v1/events", bucket=bucket, key=key, limit=limit - len(events), after=after)
        events, after = [*page["events"], *events], page["next"]
    return events


def _attempt_rows(event: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the attempts at an event, at every target, oldest first."""
    rows = [
        {"event": event["event"], "id": event["id"], "target": short_target(state), **attempt}
        for state in event["delivery_states"]
        for attempt in state["timeline"]
    ]
    return sorted(rows, key=lambda row: str(row["at"]))


def _format_state(state: dict[str, Any]) -> str:
    reason = f" ({state['reason']})" if state["reason"] else ""
    return f"{short_target(state)} {state['state']}{reason}"


DELIVERY: Columns = {
    "delivery state": lambda event: "; ".join(map(_format_state, event["delivery_states"])) or "no rule named a target",
}
COLUMNS: Columns = {**Event.columns, **DELIVERY}
