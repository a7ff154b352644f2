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

_PERIOD = 0.25  # seconds between two looks
_OPTIONS = {"events": "--event", "bucket": "--bucket", "prefix": "--prefix"}


@click.group(invoke_without_command=True)
@click.option("--target", type=TARGET, help="To which target, as type:name or ARN.")
@click.option("--since", type=TIME, help="Received since then, such as 2h or 2026-11-21T14:00:00Z.")
@click.option("--before", type=TIME, help="Received before then.")
@click.option("--bucket", default="", help="Of this bucket.")
@click.option("--prefix", default="", help="Of objects whose key begins so.")
@click.option("--event", "event_words", default="", help="put, delete, get, …, or event names, divided by commas.")
@click.option("--all", "everything", is_flag=True, help="Every event that is retained.")
@click.option("--list", "listing", is_flag=True, help="Show the replays there were instead.")
@click.option("--wait", is_flag=True, help="Until it is over. Ctrl-C ends the waiting, not the replay.")
@with_context_or_url
def replay(
    context: CommandContext, target: TargetId | None, since: int | None, before: int | None, bucket: str, prefix: str,
    event_words: str, everything: bool, listing: bool, wait: bool,
) -> None:  # fmt: skip
    """Deliver a target's retained events again, in order, under the ids they had.

    What the target has not got yet comes anyway and is not part of the replay.
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
        context.rows([_row(each) for each in replays.list()], columns, "no replays")
        return
    if target is None:
        raise click.UsageError("name the target: --target type:name")
    selection = Selection(since or 0, before or NEVER, bucket, prefix, plain_names(event_words))
    if everything == (selection != Selection()):
        raise click.UsageError("say which events: options such as --since or --prefix, or --all alone")
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
    context.done(
        f"replay {begun.replay_id} has begun; `bucketwire replay --list` shows how far it has come", **_row(begun)
    )


@replay.command()
@click.argument("number", metavar="ID", type=click.IntRange(1, 2**31 - 1))
@with_context_or_url
def cancel(context: CommandContext, number: int) -> None:
    """End the replay of this number where it is.

    What it has delivered or parked stays so; the target's new events go on at once.
    """
    try:
        ended = context.replays.cancel(number)
    except UnknownReplay as error:
        raise CommandError(str(error)) from None
    what = "is cancelled" if ended.cancelled_at else "was over already"
    context.done(f"replay {number} {what}: {count_noun(ended.replayed, 'event')} delivered or parked", **_row(ended))


def _wait(context: CommandContext, begun: Replay) -> Replay:
    """Return the replay once it is finished."""
    replay = context.replays.get(begun.replay_id)
    with bar(context) as shown:
        task = shown.add_task(f"replay {begun.replay_id}", total=1.0)
        while not replay.finished:
            time.sleep(_PERIOD)
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
