"""The options that select dead letters or retried events, and the check that a change of all of them is meant."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from app.cli.client import Client, target_path
from app.cli.context import CommandContext, with_api
from app.cli_common import CommandError
from app.cli_common.param_types import TARGET, TIME
from app.resources import declaration
from app.resources.declaration import Member, Query, filter_parts

BATCH_IDS = 100  # that one request asks for: as many as its line has room for
_MAX_ROWS = 100_000
_TYPES = {declaration.TARGET.parse: TARGET, declaration.TIME.parse: TIME}


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
