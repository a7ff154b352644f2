"""`bucketwire dead-letter …`: the events that are not delivered again automatically."""

from typing import Any

import click
import msgspec
import orjson

from app.cli.context import CommandContext, with_context_or_url
from app.cli.filter_options import filter_options, require_filter, require_found
from app.cli_common.errors import CommandError
from app.cli_common.output import count_noun, printable
from app.cli_common.param_types import TARGET, TIME
from app.resources.dead_letter import DeadLetter, DeadLetterFilter
from app.resources.declaration import object_path, short_target

_filters = filter_options(
    DeadLetterFilter,
    {
        "target": {"type": TARGET, "help": "The target, as type:name or ARN."},
        "bucket": {"help": "The event's bucket."},
        "prefix": {"help": "Prefix of the object's key."},
        "reason": {"help": "Text that the reason contains."},
        "since": {"type": TIME, "help": "Last attempt since this time, such as 2h or 2026-11-21T14:00:00Z."},
        "before": {"type": TIME, "help": "Last attempt before this time."},
    },
)


@click.group()
def dead_letter() -> None:
    """Show, replay or delete dead letters."""


@dead_letter.command()
@click.option(
    "--limit", default=100, show_default=True, type=click.IntRange(1, 100_000), help="Show at most this many."
)
@click.option("--after", default=0, help="Continue after this number.")
@_filters
def ls(context: CommandContext, which: DeadLetterFilter, limit: int, after: int) -> None:
    """List dead letters, oldest first."""
    rows = [_row(letter) for letter in context.dead_letters.list(which, limit=limit, after=after)]
    columns = {
        "number": "number", "target": "target", "event": "name", "object": "path", "attempts": "attempts",
        "last attempt": "last_tried", "reason": "reason",
    }  # fmt: skip
    context.rows(rows, columns, "no dead letters")


@dead_letter.command()
@click.argument("number", type=int)
@with_context_or_url
def show(context: CommandContext, number: int) -> None:
    """Show one dead letter: the last attempts, each with the target's message, and the event's record."""
    letters = context.dead_letters.list(DeadLetterFilter(ids=[number]))
    if not letters:
        raise CommandError(f"there is no dead letter {number}; `bucketwire dead-letter ls` lists them")
    [letter] = letters
    row = _row(letter) | {name: value for name, value in whole_json(letter).items() if name in ("history", "record")}
    if context.as_json:
        context.json(row)
        return
    for name, value in row.items():
        if name not in ("history", "record"):
            click.echo(f"{name:>12}  {printable(str(value))}")
    for attempt in row["history"]:
        click.echo(f"{'attempt':>12}  {attempt['at']}  {printable(attempt['reason'])}")
    click.echo(orjson.dumps(row["record"], option=orjson.OPT_INDENT_2).decode())


@dead_letter.command()
@click.argument("ids", metavar="[NUMBER]...", type=int, nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every dead letter.")
@_filters
def replay(context: CommandContext, which: DeadLetterFilter, everything: bool) -> None:
    """Deliver dead letters again, each object's in order. They keep their ids; attempts count from zero."""
    number = context.dead_letters.replay(_selected(context, which, everything))
    context.done(f"{count_noun(number, 'dead letter')} queued for delivery again", replayed=number)


@dead_letter.command()
@click.argument("ids", metavar="[NUMBER]...", type=int, nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every dead letter.")
@_filters
def purge(context: CommandContext, which: DeadLetterFilter, everything: bool) -> None:
    """Delete dead letters; the target's counters count them as purged."""
    number = context.dead_letters.purge(_selected(context, which, everything))
    context.done(f"{count_noun(number, 'dead letter')} deleted", purged=number)


def _selected(context: CommandContext, which: DeadLetterFilter, everything: bool) -> DeadLetterFilter:
    require_filter(which, everything, "dead letters: numbers, options such as --target or --reason")
    if which.ids:
        letters = context.dead_letters.list(DeadLetterFilter(ids=which.ids), limit=len(which.ids))
        found = {letter.id for letter in letters}
        require_found(which.ids, found, "dead letter", "bucketwire dead-letter ls")
    return which


def _row(letter: DeadLetter) -> dict[str, Any]:
    row = whole_json(letter)
    return {
        "number": row["id"], "target": short_target(row), "id": row["event_id"], "path": object_path(row),
        **{name: row[name] for name in ("name", "bucket", "key", "attempts", "first_tried", "last_tried", "reason")},
    }  # fmt: skip


def whole_json(letter: DeadLetter) -> dict[str, Any]:
    """Return a dead letter's JSON."""
    return dict(orjson.loads(msgspec.json.encode(letter)))
