"""The options that select dead letters or retried events, and the check that a change of all of them is meant."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from app.cli.context import CommandContext, with_context_or_url

Which = TypeVar("Which")


def filter_options(
    make: Callable[..., Which], options: Mapping[str, Mapping[str, Any]]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds options, given by name, and passes `make(ids=…, **those that are set)` as `which`.

    The command may have an argument `ids`. The decorator replaces `with_context_or_url`.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        def command(context: CommandContext, **given: Any) -> None:
            chosen = {name: given.pop(name) for name in options}
            chosen = {name: value for name, value in chosen.items() if value not in (None, "")}
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
