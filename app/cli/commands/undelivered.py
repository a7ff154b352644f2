"""`bucketwire dead-letter …`, `retry …` and `replay …`: list what is not delivered, and deliver it again or give it up.

Dead letters and retried events are selected by the same options, and a change of all of them has to be meant.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click
import orjson

from app.cli.commands.rules import event_option, names
from app.cli.context import Client, CommandContext, target_path, with_api
from app.cli.groups import Group
from app.cli_common import CommandError
from app.cli_common.output import bar, columns, print_exchange
from app.cli_common.param_types import TARGET, TIME
from app.config.arn import TargetId
from app.quantities import count_noun
from app.resources import declaration
from app.resources.declaration import Member, Query, filter_parts, format_time
from app.resources.undelivered import DeadLetter, DeadLetterFilter, Replay, Retry, RetryFilter

BATCH_IDS = 100  # that one request asks for: as many as its line has room for
_MAX_ROWS = 100_000
_TYPES = {declaration.TARGET.parse: TARGET, declaration.TIME.parse: TIME}
_DEAD_LETTERS = "/v1/dead-letters"
_RETRIES = "/v1/retries"
_REPLAYS = "/v1/replays"
_INTERVAL_SECONDS = 0.25  # between two queries of the progress


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Which rows of a list of the API, at `path`; `chosen` has the options that are set, as the API names them."""

    path: str
    ids: Sequence[int | str] = ()
    chosen: Mapping[str, Any] = field(default_factory=dict)

    def rows(self, api: Client, member: str, *, limit: int, after: Any = None) -> list[dict[str, Any]]:
        """Return the first `limit` of the rows."""
        return api.pages(self.path, member, limit=limit, after=after, **self.chosen)


def filter_options(path: str, query: type[Query]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds an option for each member of a query, and passes a `RowFilter` of them as `which`.

    The query's `ids` are an argument, which the command has or has not. It is refused for an option `target` of none.
    The decorator replaces `with_api`.
    """
    members = {part.name: part.member for part in filter_parts(query)}

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        def command(context: CommandContext, **given: Any) -> None:
            chosen = {name: given.pop(name) for name in members}
            chosen = {name: value for name, value in chosen.items() if value not in (None, "")}
            if "target" in chosen:
                context.api.get(target_path(chosen["target"]))  # a mistyped one would select nothing
                chosen["target"] = str(chosen["target"])
            function(context, which=RowFilter(path, given.pop("ids", ()), chosen), **given)

        command.__name__, command.__doc__ = function.__name__, function.__doc__
        decorated = with_api(command)
        for name, member in reversed(members.items()):
            decorated = _option(name, member)(decorated)
        return decorated

    return decorate


def _option(name: str, member: Member) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the option of a query's member; a time may also be written as how long ago it was."""
    hint = ", such as 2h or 2026-11-21T14:00:00Z" if member.parse is declaration.TIME.parse else ""
    text = f"{member.text[:1].upper()}{member.text[1:]}{hint}."
    return click.option(f"--{name}", type=_TYPES.get(member.parse), help=text)


def selection(which: RowFilter, everything: bool, selected: str) -> dict[str, Any]:
    """Return the body of a change of these rows. Raises `click.UsageError` if it is empty by mistake.

    `everything` is the value of `--all`, and `selected` says what can be given instead.
    """
    if everything == bool(which.ids or which.chosen):
        raise click.UsageError(f"select {selected}, or only --all")
    return {"all": True} if everything else {**which.chosen, **({"ids": list(which.ids)} if which.ids else {})}


def require_rows(which: RowFilter, api: Client, member: str, number: str, *, what: str, listing: str) -> None:
    """Raise `CommandError` if a row that an id names does not exist, before anything is changed.

    `number` is the rows' member with the id, `what` the noun for one of them, `listing` the command that lists them.
    """
    known = set()
    for first in range(0, len(which.ids), BATCH_IDS):
        batch = which.ids[first : first + BATCH_IDS]
        known |= {row[number] for row in api.pages(which.path, member, limit=_MAX_ROWS, ids=batch)}
    missing = [str(one) for one in dict.fromkeys(which.ids) if one not in known]
    if missing:
        raise CommandError(f"there is no {what} {', '.join(missing)}, so nothing was changed; `{listing}` lists them")


_dead_letter_filters = filter_options(_DEAD_LETTERS, DeadLetterFilter)


@click.group(cls=Group)
def dead_letter() -> None:
    """Show, replay or delete dead letters."""


@dead_letter.command(name="ls")
@click.option(
    "--limit", default=100, show_default=True, type=click.IntRange(1, 100_000), help="Show at most this many."
)
@click.option("--after", default=0, help="Continue after this id.")
@_dead_letter_filters
def ls_dead_letters(context: CommandContext, which: RowFilter, limit: int, after: int) -> None:
    """List dead letters, oldest first."""
    context.rows(
        which.rows(context.api, "dead_letters", limit=limit, after=after), DeadLetter.columns, "no dead letters"
    )


@dead_letter.command(name="show")
@click.argument("number", metavar="ID", type=int)
@with_api
def show_dead_letter(context: CommandContext, number: int) -> None:
    """Show one dead letter: the last attempts, the last request and its answer, and the event's record."""
    letters = context.api.get(_DEAD_LETTERS, ids=number)["dead_letters"]
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


@dead_letter.command(name="replay")
@click.argument("ids", metavar="[ID]...", type=int, nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every dead letter.")
@_dead_letter_filters
def replay_dead_letters(context: CommandContext, which: RowFilter, everything: bool) -> None:
    """Deliver dead letters again, each object's in order. They keep their ids; attempts count from zero."""
    answer = _change_dead_letters(context, which, "replay", everything)
    context.done(f"{count_noun(answer['replayed'], 'dead letter')} queued for delivery again", **answer)


@dead_letter.command()
@click.argument("ids", metavar="[ID]...", type=int, nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every dead letter.")
@_dead_letter_filters
def purge(context: CommandContext, which: RowFilter, everything: bool) -> None:
    """Delete dead letters; the target's counters count them as purged."""
    answer = _change_dead_letters(context, which, "purge", everything)
    context.done(f"{count_noun(answer['purged'], 'dead letter')} deleted", **answer)


def _change_dead_letters(context: CommandContext, which: RowFilter, verb: str, everything: bool) -> dict[str, int]:
    body = selection(which, everything, "dead letters: ids, options such as --target or --reason")
    require_rows(which, context.api, "dead_letters", "id", what="dead letter", listing="bucketwire dead-letter ls")
    return context.api.change("POST", f"{_DEAD_LETTERS}/{verb}", body)


_retry_filters = filter_options(_RETRIES, RetryFilter)


@click.group(cls=Group)
def retry() -> None:
    """Show retried events, have them tried now, or give them up."""


@retry.command(name="ls")
@click.option(
    "--limit", default=100, show_default=True, type=click.IntRange(1, 100_000), help="The most events to show."
)
@_retry_filters
def ls_retries(context: CommandContext, which: RowFilter, limit: int) -> None:
    """List the events that are retried; later events of the same objects wait behind them."""
    context.rows(which.rows(context.api, "retries", limit=limit), Retry.columns, "nothing is retried")


@retry.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every retried event.")
@_retry_filters
def now(context: CommandContext, which: RowFilter, everything: bool) -> None:
    """Have retried events tried now. Those of an unavailable target wait until it is available."""
    answer = _change_retries(context, which, "now", everything)
    context.done(f"{count_noun(answer['due'], 'event')} due now", **answer)


@retry.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every retried event.")
@_retry_filters
def give_up(context: CommandContext, which: RowFilter, everything: bool) -> None:
    """Make dead letters of retried events; the next event of each object is tried at once."""
    answer = _change_retries(context, which, "give-up", everything)
    given_up = count_noun(answer["given_up"], "event")
    context.done(f"{given_up} given up; `bucketwire dead-letter ls` shows them", **answer)


def _change_retries(context: CommandContext, which: RowFilter, verb: str, everything: bool) -> dict[str, int]:
    body = selection(which, everything, "events: ids, options such as --target or --bucket")
    require_rows(which, context.api, "retries", "event_id", what="retried event", listing="bucketwire retry ls")
    return context.api.change("POST", f"{_RETRIES}/{verb}", body)


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
        context.rows(context.api.get(_REPLAYS)["replays"], Replay.columns, "no replays")
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
    begun = context.api.change("POST", _REPLAYS, {"target": str(target), **(chosen or {"all": True})})
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
    ended = context.api.change("DELETE", f"{_REPLAYS}/{number}")
    state = "is cancelled" if ended["cancelled_at"] else "was already finished"
    context.done(f"replay {number} {state}: {count_noun(ended['replayed'], 'event')} delivered or parked", **ended)


def _wait(context: CommandContext, begun: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the replay once it is finished."""
    replay = begun
    with bar(context) as shown:
        task = shown.add_task(f"replay {begun['id']}", total=1.0)
        while not replay["finished"]:
            time.sleep(_INTERVAL_SECONDS)
            replay = context.api.get(f"{_REPLAYS}/{begun['id']}")
            shown.update(task, completed=replay["progress"])
    return replay
