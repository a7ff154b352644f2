"""`bucketwire retry …`: the events that are retried, because an attempt failed or their target was unavailable."""

import click

from app.cli.context import CommandContext
from app.cli.filter_options import RowFilter, filter_options, require_rows, selection
from app.cli.groups import Group
from app.quantities import count_noun
from app.resources.retry import Retry, RetryFilter

_PATH = "/v1/retries"

_filters = filter_options(_PATH, RetryFilter)


@click.group(cls=Group)
def retry() -> None:
    """Show retried events, have them tried now, or give them up."""


@retry.command()
@click.option(
    "--limit", default=100, show_default=True, type=click.IntRange(1, 100_000), help="The most events to show."
)
@_filters
def ls(context: CommandContext, which: RowFilter, limit: int) -> None:
    """List the events that are retried; later events of the same objects wait behind them."""
    context.rows(which.rows(context.api, "retries", limit=limit), Retry.columns, "nothing is retried")


@retry.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every retried event.")
@_filters
def now(context: CommandContext, which: RowFilter, everything: bool) -> None:
    """Have retried events tried now. Those of an unavailable target wait until it is available."""
    answer = _change(context, which, "now", everything)
    context.done(f"{count_noun(answer['due'], 'event')} due now", **answer)


@retry.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every retried event.")
@_filters
def give_up(context: CommandContext, which: RowFilter, everything: bool) -> None:
    """Make dead letters of retried events; the next event of each object is tried at once."""
    answer = _change(context, which, "give-up", everything)
    given_up = count_noun(answer["given_up"], "event")
    context.done(f"{given_up} given up; `bucketwire dead-letter ls` shows them", **answer)


def _change(context: CommandContext, which: RowFilter, verb: str, everything: bool) -> dict[str, int]:
    body = selection(which, everything, "events: ids, options such as --target or --bucket")
    require_rows(which, context.api, "retries", "event_id", what="retried event", listing="bucketwire retry ls")
    return context.api.change("POST", f"{_PATH}/{verb}", body)
