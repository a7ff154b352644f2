"""`bucketwire replay`: deliver retained events again."""

import time
from collections.abc import Mapping
from typing import Any

import click

from app.cli.client import target_path
from app.cli.commands.rules import event_option, names
from app.cli.context import CommandContext, with_api
from app.cli.groups import Group
from app.cli_common import CommandError
from app.cli_common.output import bar
from app.cli_common.param_types import TARGET, TIME
from app.config.arn import TargetId
from app.quantities import count_noun
from app.resources.declaration import format_time
from app.resources.replay import Replay

_PATH = "/v1/replays"
_INTERVAL_SECONDS = 0.25  # between two queries of the progress


@click.group(cls=Group, invoke_without_command=True)
@click.option("--target", type=TARGET, help="The target, as type:name or ARN.")
@click.option("--since", type=TIME, help="Only events received since this time, such as 2h or 2026-11-21T14:00:00Z.")
@click.option("--before", type=TIME, help="Only events received before this time.")
@click.option("--bucket", default="", help="Only events of this bucket.")
@click.option("--prefix", default="", help="Only events of objects whose key has this prefix.")
@event_option(default="")
@click.option("--all", "everything", is_flag=True, help="Every retained event.")
@click.option("--list", "listing", is_flag=True, help="List the replays instead.")
@click.option("--wait", is_flag=True, help="Wait until the replay is finished. Ctrl-C stops waiting, not the replay.")
@with_api
def replay(
    context: CommandContext, target: TargetId | None, since: int | None, before: int | None, bucket: str, prefix: str,
    event_words: str, everything: bool, listing: bool, wait: bool,
) -> None:  # fmt: skip
    """Deliver a target's retained events again, in order and with the same ids.

    Pending events are delivered anyway and are not part of the replay.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    if listing:
        context.rows(context.api.get(_PATH)["replays"], Replay.columns, "no replays")
        return
    if target is None:
        raise click.UsageError("name the target: --target type:name")
    filters = {
        "since": since, "before": before, "bucket": bucket, "prefix": prefix, "events": list(names(event_words)),
    }  # fmt: skip
    chosen = {name: value for name, value in filters.items() if value not in (None, "", [])}
    if everything == bool(chosen):
        raise click.UsageError("select events: options such as --since or --prefix, or only --all")
    if since is not None and before is not None and since >= before:
        raise click.BadParameter(
            f"is {format_time(since)}, which is not before --before, {format_time(before)}", param_hint="--since"
        )
    paused = context.api.get(target_path(target))["state"] == "paused"
    if paused and wait:
        raise CommandError(f"{target} is paused, so the replay would not end; `bucketwire target resume {target}`")
    begun = context.api.change("POST", _PATH, {"target": str(target), **(chosen or {"all": True})})
    if wait:
        ended = _wait(context, begun)
        context.done(f"replay {ended['id']}: {count_noun(ended['replayed'], 'event')} delivered or parked", **ended)
        return
    follow = f"replay {begun['id']} has begun; `bucketwire replay --list` shows its progress"
    if paused:
        follow = f"replay {begun['id']} waits, as {target} is paused: `bucketwire target resume {target}`"
    context.done(follow, **begun)


@replay.command()
@click.argument("number", metavar="ID", type=click.IntRange(1, 2**31 - 1))
@with_api
def cancel(context: CommandContext, number: int) -> None:
    """Cancel the replay with this number at its current position.

    Events that it has delivered or parked are kept; the target's new events are delivered at once.
    """
    ended = context.api.change("DELETE", f"{_PATH}/{number}")
    state = "is cancelled" if ended["cancelled_at"] else "was already finished"
    context.done(f"replay {number} {state}: {count_noun(ended['replayed'], 'event')} delivered or parked", **ended)


def _wait(context: CommandContext, begun: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the replay once it is finished."""
    replay = begun
    with bar(context) as shown:
        task = shown.add_task(f"replay {begun['id']}", total=1.0)
        while not replay["finished"]:
            time.sleep(_INTERVAL_SECONDS)
            replay = context.api.get(f"{_PATH}/{begun['id']}")
            shown.update(task, completed=replay["progress"])
    return replay
