"""`bucketwire dead …`: the events that a target will not get by itself any more."""

from collections.abc import Callable
from typing import Any

import click
import orjson

from app.cli.problems import CannotDo
from app.cli.shell import Shell, anywhere, counted, printable
from app.cli.words import MOMENT, TARGET, iso
from app.outbox.delivery.dead_letters import DeadLetter, Filter

_NONE = Filter()


@click.group()
def dead() -> None:
    """Look at dead letters, send them on their way again, or throw them away."""


def _filters(function: Callable[..., None]) -> Callable[..., None]:
    """The options that choose dead letters, gathered into `which`."""

    def command(shell: Shell, **options: Any) -> None:
        chosen = {name: options.pop(name) for name in ("target", "bucket", "prefix", "reason", "since", "before")}
        given = {name: value for name, value in chosen.items() if value not in (None, "")}
        function(shell, which=Filter(ids=options.pop("ids", ()), **given), **options)

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    decorated = anywhere(command)
    for option in (
        click.option("--before", type=MOMENT, help="Last tried before then."),
        click.option("--since", type=MOMENT, help="Last tried since then, such as 2h or 2026-11-21T14:00:00Z."),
        click.option("--reason", help="A part of the reason."),
        click.option("--prefix", help="How the object's key begins."),
        click.option("--bucket", help="The event's bucket."),
        click.option("--target", type=TARGET, help="The target, as type:name or ARN."),
    ):
        decorated = option(decorated)
    return decorated


@dead.command()
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 100_000), help="At most so many.")
@click.option("--after", default=0, help="Go on behind this number.")
@_filters
def ls(shell: Shell, which: Filter, limit: int, after: int) -> None:
    """List dead letters, oldest first."""
    rows = [_row(letter) for letter in shell.dead_letters.list(which, limit=limit, after=after)]
    columns = {
        "number": "number", "target": "target", "event": "name", "object": "path", "tries": "attempts",
        "last try": "last_tried", "reason": "reason",
    }  # fmt: skip
    shell.rows(rows, columns, "no dead letters")


@dead.command()
@click.argument("number", type=int)
@anywhere
def show(shell: Shell, number: int) -> None:
    """Show one dead letter: the last tries, each with the target's own words, and the event's record."""
    found = shell.dead_letters.list(Filter(ids=[number]))
    if not found:
        raise CannotDo(f"there is no dead letter {number}; `bucketwire dead ls` shows those there are")
    [letter] = found
    row = _row(letter) | {
        "history": [{"at": iso(at), "reason": reason} for at, reason in letter.history],
        "record": orjson.loads(letter.record),
    }
    if shell.as_json:
        shell.json(row)
        return
    for name, value in row.items():
        if name not in ("history", "record"):
            click.echo(f"{name:>12}  {printable(str(value))}")
    for tried in row["history"]:
        click.echo(f"{'tried':>12}  {tried['at']}  {printable(tried['reason'])}")
    click.echo(orjson.dumps(row["record"], option=orjson.OPT_INDENT_2).decode())


@dead.command()
@click.argument("ids", metavar="[NUMBER]...", type=int, nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every dead letter there is.")
@_filters
def replay(shell: Shell, which: Filter, everything: bool) -> None:
    """Deliver dead letters again, each object's in their order. They keep their ids; tries count anew."""
    number = shell.dead_letters.replay(_some(which, everything))
    shell.done(f"{counted(number, 'dead letter')} on the way again", replayed=number)


@dead.command()
@click.argument("ids", metavar="[NUMBER]...", type=int, nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every dead letter there is.")
@_filters
def purge(shell: Shell, which: Filter, everything: bool) -> None:
    """Throw dead letters away; the target's counters count them as purged."""
    number = shell.dead_letters.purge(_some(which, everything))
    shell.done(f"{counted(number, 'dead letter')} thrown away", purged=number)


def _some(which: Filter, everything: bool) -> Filter:
    if everything == (which != _NONE):
        raise click.UsageError("say which: numbers, options such as --target or --reason, or --all alone")
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
