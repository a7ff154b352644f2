"""`bucketwire dead-letter …`: the events that are not delivered again automatically."""

from collections.abc import Callable
from typing import Any

import click
import orjson

from app.cli.context import CommandContext, with_context_or_url
from app.cli_common.errors import CommandError
from app.cli_common.output import count_noun, printable
from app.cli_common.param_types import TARGET, TIME, iso
from app.outbox.delivery.dead_letters import DeadLetter, Filter

_NONE = Filter()


@click.group()
def dead_letter() -> None:
    """Show, replay or delete dead letters."""


def _filters(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select dead letters, and pass them as `which`."""

    def command(context: CommandContext, **options: Any) -> None:
        filters = {name: options.pop(name) for name in ("target", "bucket", "prefix", "reason", "since", "before")}
        filters = {name: value for name, value in filters.items() if value not in (None, "")}
        function(context, which=Filter(ids=options.pop("ids", ()), **filters), **options)

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    decorated = with_context_or_url(command)
    for option in (
        click.option("--before", type=TIME, help="Last attempt before this time."),
        click.option("--since", type=TIME, help="Last attempt since this time, such as 2h or 2026-11-21T14:00:00Z."),
        click.option("--reason", help="Text that the reason contains."),
        click.option("--prefix", help="Prefix of the object's key."),
        click.option("--bucket", help="The event's bucket."),
        click.option("--target", type=TARGET, help="The target, as type:name or ARN."),
    ):
        decorated = option(decorated)
    return decorated


@dead_letter.command()
@click.option(
    "--limit", default=100, show_default=True, type=click.IntRange(1, 100_000), help="Show at most this many."
)
@click.option("--after", default=0, help="Continue after this number.")
@_filters
def ls(context: CommandContext, which: Filter, limit: int, after: int) -> None:
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
    letters = context.dead_letters.list(Filter(ids=[number]))
    if not letters:
        raise CommandError(f"there is no dead letter {number}; `bucketwire dead-letter ls` lists them")
    [letter] = letters
    row = _row(letter) | {
        "history": [{"at": iso(at), "reason": reason} for at, reason in letter.history],
        "record": orjson.loads(letter.record),
    }
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
def replay(context: CommandContext, which: Filter, everything: bool) -> None:
    """Deliver dead letters again, each object's in order. They keep their ids; attempts count from zero."""
    number = context.dead_letters.replay(_require_filter(which, everything))
    context.done(f"{count_noun(number, 'dead letter')} queued for delivery again", replayed=number)


@dead_letter.command()
@click.argument("ids", metavar="[NUMBER]...", type=int, nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every dead letter.")
@_filters
def purge(context: CommandContext, which: Filter, everything: bool) -> None:
    """Delete dead letters; the target's counters count them as purged."""
    number = context.dead_letters.purge(_require_filter(which, everything))
    context.done(f"{count_noun(number, 'dead letter')} deleted", purged=number)


def _require_filter(which: Filter, everything: bool) -> Filter:
    if everything == (which != _NONE):
        raise click.UsageError("select dead letters: numbers, options such as --target or --reason, or only --all")
    return which


def _row(letter: DeadLetter) -> dict[str, Any]:
    return {
        "number": letter.letter_id,
        "target": str(letter.target),
        "id": letter.event_id,
        "name": letter.name,
        "bucket": letter.bucket,
        "key": letter.key,
        "path": f"{letter.bucket}/{letter.key}",
        "attempts": letter.attempts,
        "first_tried": iso(letter.first_tried),
        "last_tried": iso(letter.last_tried),
        "reason": letter.reason,
    }
