"""The options that select dead letters or retried events, and the check that a change of all of them is meant."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import click

from app.cli.context import CommandContext, with_context_or_url
from app.cli_common.errors import CommandError

Which = TypeVar("Which")
Value = TypeVar("Value", int, str)


def filter_options(
    make: Callable[..., Which], options: Mapping[str, Mapping[str, Any]]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds options, given by name, and passes `make(ids=…, **those that are set)` as `which`.

    The command may have an argument `ids`, and raises `UnknownTarget` for an option `target` of none. The decorator
    replaces `with_context_or_url`.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        def command(context: CommandContext, **given: Any) -> None:
            chosen = {name: given.pop(name) for name in options}
            chosen = {name: value for name, value in chosen.items() if value not in (None, "")}
            if "target" in chosen:
                context.chosen.target(chosen["target"])  # raises `UnknownTarget` for a mistyped one
            function(context, which=make(ids=given.pop("ids", ()), **chosen), **given)

        command.__name__, command.__doc__ = function.__name__, function.__doc__
        decorated = with_context_or_url(command)
        for name, settings in reversed([*options.items()]):
            decorated = click.option(f"--{name}", **settings)(decorated)
        return decorated

    return decorate


def require_filter(which: Which, everything: bool, selected: str) -> Which:
    """Return a change's filter, which must not be empty by mistake. Raises `click.UsageError`.

    `everything` is the value of `--all`, and `selected` says what can be given instead.
    """
    if everything == (which != type(which)()):
        raise click.UsageError(f"select {selected}, or only --all")
    return which


def require_found(asked: Collection[Value], found: Collection[Value], what: str, listing: str) -> None:
    """Raise `CommandError` if not all that was asked for was found, before anything is changed.

    `what` is the noun for one of them, `listing` the command that lists them.
    """
    missing = [str(one) for one in dict.fromkeys(asked) if one not in found]
    if missing:
        raise CommandError(f"there is no {what} {', '.join(missing)}, so nothing was changed; `{listing}` lists them")
