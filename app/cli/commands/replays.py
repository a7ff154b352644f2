"""`bucketwire replay`: deliver retained events again."""

import time

import click

from app.cli.commands.rules import plain_names
from app.cli.context import CommandContext, with_context_or_url
from app.cli_common.errors import CommandError
from app.cli_common.output import bar, count_noun
from app.cli_common.param_types import TARGET, TIME, iso
from app.config.arn import TargetId
from app.outbox.delivery.replays import BadSelection, Replay, Selection, UnknownReplay, checked
from app.outbox.markers import NEVER

_INTERVAL = 0.25  # seconds between two queries of the progress
_OPTIONS = {"events": "--event", "bucket": "--bucket", "prefix": "--prefix"}


@click.group(invoke_without_command=True)
@click.option("--target", type=TARGET, help="The target, as type:name or ARN.")
@click.option("--since", type=TIME, help="Only events received since this time, such as 2h or 2026-11-21T14:00:00Z.")
@click.option("--before", type=TIME, help="Only events received before this time.")
@click.option("--bucket", default="", help="Only events of this bucket.")
@click.option("--prefix", default="", help="Only events of objects whose key has this prefix.")
@click.option("--event", "event_words", default="", help="put, delete, get, …, or event names, comma-separated.")
@click.option("--all", "everything", is_flag=True, help="Every retained event.")
@click.option("--list", "listing", is_flag=True, help="List the replays instead.")
@click.option("--wait", is_flag=True, help="Wait until the replay is finished. Ctrl-C stops waiting, not the replay.")
@with_context_or_url
def replay(
    context: CommandContext, target: TargetId | None, since: int | None, before: int | None, bucket: str, prefix: str,
    event_words: str, everything: bool, listing: bool, wait: bool,
) -> None:  # fmt: skip
    """Deliver a target's retained events again, in order and with the same ids.

    Pending events are delivered anyway and are not part of the replay.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    replays = context.replays
    if listing:
        columns = {
            "replay": "number",
            "target": "target",
            "begun": "created_at",
            "events": "replayed",
            "progress": "progress",
            "done": "finished",
        }
        context.rows([_row(replay) for replay in replays.list()], columns, "no replays")
        return
    if target is None:
        raise click.UsageError("name the target: --target type:name")
    selection = Selection(since or 0, before or NEVER, bucket, prefix, plain_names(event_words))
    if everything == (selection != Selection()):
        raise click.UsageError("select events: options such as --since or --prefix, or only --all")
    if since is not None and before is not None and since >= before:
        raise click.BadParameter(f"is {iso(since)}, which is not before --before, {iso(before)}", param_hint="--since")
    paused = context.chosen.target(target).paused
    if paused and wait:
        raise CommandError(f"{target} is paused, so the replay would not end; `bucketwire target resume {target}`")
    try:
        begun = replays.begin(target, checked(selection))
    except BadSelection as error:
        raise click.BadParameter(f"{error.problem}; {error.hint}", param_hint=_OPTIONS[error.field]) from None
    if wait:
        ended = _wait(context, begun)
        context.done(
            f"replay {ended.replay_id}: {count_noun(ended.replayed, 'event')} delivered or parked", **_row(ended)
        )
        return
    follow = f"replay {begun.replay_id} has begun; `bucketwire replay --list` shows its progress"
    if paused:
        follow = f"replay {begun.replay_id} waits, as {target} is paused: `bucketwire target resume {target}`"
    context.done(follow, **_row(begun))


@replay.command()
@click.argument("number", metavar="ID", type=click.IntRange(1, 2**31 - 1))
@with_context_or_url
def cancel(context: CommandContext, number: int) -> None:
    """Cancel the replay with this number at its current position.

    Events that it has delivered or parked are kept; the target's new events are delivered at once.
    """
    try:
        ended = context.replays.cancel(number)
    except UnknownReplay as error:
        raise CommandError(str(error)) from None
    state = "is cancelled" if ended.cancelled_at else "was already finished"
    context.done(f"replay {number} {state}: {count_noun(ended.replayed, 'event')} delivered or parked", **_row(ended))


def _wait(context: CommandContext, begun: Replay) -> Replay:
    """Return the replay once it is finished."""
    replay = context.replays.get(begun.replay_id)
    with bar(context) as shown:
        task = shown.add_task(f"replay {begun.replay_id}", total=1.0)
        while not replay.finished:
            time.sleep(_INTERVAL)
            replay = context.replays.get(begun.replay_id)
            shown.update(task, completed=replay.progress)
    return replay


def _row(replay: Replay) -> dict[str, object]:
    chosen = replay.selection
    return {
        "number": replay.replay_id,
        "target": str(replay.target),
        "created_at": iso(replay.created_at),
        "since": iso(chosen.since),
        "before": iso(chosen.before) if chosen.before < NEVER else None,
        "bucket": chosen.bucket,
        "prefix": chosen.prefix,
        "events": list(chosen.names),
        "replayed": replay.replayed,
        "progress": round(replay.progress, 4),
        "finished": replay.finished,
        "cancelled_at": iso(replay.cancelled_at),
    }
