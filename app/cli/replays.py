"""`bucketwire replay`: deliver retained events again."""

import time

import click

from app.cli.rules import plain_names
from app.cli.shell import Shell, anywhere, bar, counted
from app.cli.words import MOMENT, TARGET, iso
from app.config.arn import TargetId
from app.outbox.models import NEVER
from app.outbox.replays import Replay, Selection

_PERIOD = 0.25  # seconds between two looks


@click.command()
@click.option("--target", type=TARGET, help="To which target, as type:name or ARN.")
@click.option("--since", type=MOMENT, help="Received since then, such as 2h or 2026-11-21T14:00:00Z.")
@click.option("--before", type=MOMENT, help="Received before then.")
@click.option("--bucket", default="", help="Of this bucket.")
@click.option("--prefix", default="", help="Of objects whose key begins so.")
@click.option("--event", "event_words", default="", help="put, delete, get, …, or event names, divided by commas.")
@click.option("--all", "everything", is_flag=True, help="Every event that is retained.")
@click.option("--list", "listing", is_flag=True, help="Show the replays there were instead.")
@click.option("--wait", is_flag=True, help="Until it is over. Ctrl-C ends the waiting, not the replay.")
@anywhere
def replay(
    shell: Shell, target: TargetId | None, since: int | None, before: int | None, bucket: str, prefix: str,
    event_words: str, everything: bool, listing: bool, wait: bool,
) -> None:  # fmt: skip
    """Deliver a target's retained events again, in order, under the ids they had.

    What the target has not got yet comes anyway and is not part of the replay.
    """
    replays = shell.replays
    if listing:
        columns = {
            "replay": "number",
            "target": "target",
            "begun": "created_at",
            "events": "matched",
            "done": "finished",
        }
        shell.rows([_row(each) for each in replays.list()], columns, "no replays")
        return
    if target is None:
        raise click.UsageError("name the target: --target type:name")
    selection = Selection(since or 0, before or NEVER, bucket, prefix, plain_names(event_words))
    if everything == (selection != Selection()):
        raise click.UsageError("say which events: options such as --since or --prefix, or --all alone")
    begun = replays.begin(target, selection)
    if wait:
        _wait(shell, begun)
        shell.done(
            f"replay {begun.replay_id}: {counted(begun.matched, 'event')} delivered or parked",
            **_row(begun) | {"finished": True},
        )
        return
    shell.done(
        f"replay {begun.replay_id}: {counted(begun.matched, 'event')} on the way to {target} again", **_row(begun)
    )


def _wait(shell: Shell, begun: Replay) -> None:
    replays = shell.replays
    come, whole = replays.progress(begun.replay_id)
    with bar(shell) as shown:
        task = shown.add_task(f"replay {begun.replay_id}", total=whole)
        while come < whole:
            time.sleep(_PERIOD)
            come, whole = replays.progress(begun.replay_id)
            shown.update(task, completed=come, total=whole)


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
        "matched": replay.matched,
        "finished": replay.finished,
    }
