"""`bucketwire dead-letter …`: the events that are not delivered again automatically."""

import click
import orjson

from app.cli.context import CommandContext, with_api
from app.cli.filter_options import RowFilter, filter_options, require_rows, selection
from app.cli.groups import Group
from app.cli_common import CommandError
from app.cli_common.output import columns, print_exchange
from app.quantities import count_noun
from app.resources.dead_letter import DeadLetter, DeadLetterFilter

_PATH = "/v1/dead-letters"

_filters = filter_options(_PATH, DeadLetterFilter)


@click.group(cls=Group)
def dead_letter() -> None:
    """Show, replay or delete dead letters."""


@dead_letter.command()
@click.option(
    "--limit", default=100, show_default=True, type=click.IntRange(1, 100_000), help="Show at most this many."
)
@click.option("--after", default=0, help="Continue after this id.")
@_filters
def ls(context: CommandContext, which: RowFilter, limit: int, after: int) -> None:
    """List dead letters, oldest first."""
    context.rows(
        which.rows(context.api, "dead_letters", limit=limit, after=after), DeadLetter.columns, "no dead letters"
    )


@dead_letter.command()
@click.argument("number", metavar="ID", type=int)
@with_api
def show(context: CommandContext, number: int) -> None:
    """Show one dead letter: the last attempts, the last request and its answer, and the event's record."""
    letters = context.api.get(_PATH, ids=number)["dead_letters"]
    if not letters:
        raise CommandError(f"there is no dead letter {number}; `bucketwire dead-letter ls` lists them")
    [letter] = letters
    if context.as_json:
        context.json(letter)
        return
    context.facts({name: value for name, value in letter.items() if name not in ("history", "record")})
    context.rows(letter["history"], columns("at", "reason"), "no attempt is on record")
    states = context.api.get(f"/v1/events/{letter['event_id']}")["delivery_states"]
    print_exchange(next((state["exchange"] for state in states if state["target"] == letter["target"]), None))
    click.echo(orjson.dumps(letter["record"], option=orjson.OPT_INDENT_2).decode())


@dead_letter.command()
@click.argument("ids", metavar="[ID]...", type=int, nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every dead letter.")
@_filters
def replay(context: CommandContext, which: RowFilter, everything: bool) -> None:
    """Deliver dead letters again, each object's in order. They keep their ids; attempts count from zero."""
    answer = _change(context, which, "replay", everything)
    context.done(f"{count_noun(answer['replayed'], 'dead letter')} queued for delivery again", **answer)


@dead_letter.command()
@click.argument("ids", metavar="[ID]...", type=int, nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every dead letter.")
@_filters
def purge(context: CommandContext, which: RowFilter, everything: bool) -> None:
    """Delete dead letters; the target's counters count them as purged."""
    answer = _change(context, which, "purge", everything)
    context.done(f"{count_noun(answer['purged'], 'dead letter')} deleted", **answer)


def _change(context: CommandContext, which: RowFilter, verb: str, everything: bool) -> dict[str, int]:
    body = selection(which, everything, "dead letters: ids, options such as --target or --reason")
    require_rows(which, context.api, "dead_letters", "id", what="dead letter", listing="bucketwire dead-letter ls")
    return context.api.change("POST", f"{_PATH}/{verb}", body)
