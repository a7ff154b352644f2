"""`bucketwire retry …`: the events that are retried, because an attempt failed or their target was unavailable."""

from typing import Any

import click

from app.cli.context import CommandContext
from app.cli.filter_options import filter_options, require_filter, require_found
from app.cli_common.output import count_noun
from app.cli_common.param_types import TARGET, iso
from app.outbox.delivery.retries import Retry
from app.resources.retry import RetryFilter

_MOST = 100_000  # events to list

_filters = filter_options(
    RetryFilter,
    {
        "target": {"type": TARGET, "help": "Events for this target."},
        "bucket": {"help": "Objects of this bucket."},
        "prefix": {"help": "Objects whose key has this prefix."},
    },
)


@click.group()
def retry() -> None:
    """Show retried events, have them tried now, or give them up."""


@retry.command()
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, _MOST), help="The most events to show.")
@_filters
def ls(context: CommandContext, which: RetryFilter, limit: int) -> None:
    """List the events that are retried; later events of the same objects wait behind them."""
    columns = {
        "target": "target", "object": "path", "attempts": "attempts", "next attempt": "next_try", "id": "id",
        "reason": "reason",
    }  # fmt: skip
    context.rows([_row(entry) for entry in _listed(context, which, limit)], columns, "nothing is retried")


@retry.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every retried event.")
@_filters
def now(context: CommandContext, which: RetryFilter, everything: bool) -> None:
    """Have retried events tried now. Those of an unavailable target wait until it is available."""
    number = context.retries.try_now(_selected(context, which, everything))
    context.done(f"{count_noun(number, 'event')} due now", due=number)


@retry.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every retried event.")
@_filters
def give_up(context: CommandContext, which: RetryFilter, everything: bool) -> None:
    """Make dead letters of retried events; the next event of each object is tried at once."""
    number = context.retries.give_up(_selected(context, which, everything))
    context.done(f"{count_noun(number, 'event')} given up; `bucketwire dead-letter ls` shows them", given_up=number)


def _listed(context: CommandContext, which: RetryFilter, limit: int) -> list[Retry]:
    page = context.retries.page(which, limit=min(limit, 1000))
    listed = list(page.retries)
    while page.next is not None and len(listed) < limit:
        page = context.retries.page(which, limit=min(limit - len(listed), 1000), after=page.next)
        listed += page.retries
    return listed


def _selected(context: CommandContext, which: RetryFilter, everything: bool) -> RetryFilter:
    require_filter(which, everything, "events: ids, options such as --target or --bucket")
    if which.ids:
        found = {entry.event_id for entry in _listed(context, RetryFilter(ids=which.ids), _MOST)}
        require_found(which.ids, found, "retried event", "bucketwire retry ls")
    return which


def _row(entry: Retry) -> dict[str, Any]:
    return {
        "target": str(entry.target),
        "id": entry.event_id,
        "name": entry.name,
        "bucket": entry.bucket,
        "key": entry.key,
        "path": f"{entry.bucket}/{entry.key}",
        "attempts": entry.attempts,
        "first_tried": iso(entry.first_tried),
        "last_tried": iso(entry.last_tried),
        "next_try": iso(entry.next_try) or "now",
        "reason": entry.history[-1][1] if entry.history else "",
    }
