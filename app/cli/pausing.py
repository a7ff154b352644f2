"""The commands that pause and resume what has a state of its own, a target or a source."""

from collections.abc import Callable
from typing import Any

import click

from app.cli.context import CommandContext, with_api
from app.cli_common.param_types import ParsedParam


def add_pausing(
    group: click.Group, kind: ParsedParam[Any], path: Callable[[Any], str], *, pause: str, resume: str
) -> None:
    """Add both commands to a group, with these texts for `--help`; `path` returns the path of the routes of one."""
    which = click.argument("which", metavar=kind.name.upper(), type=kind)
    shown = f"The reason that `{kind.name} ls` shows."

    @group.command("pause", help=pause)
    @which
    @click.option("--reason", default="paused by hand", show_default=True, help=shown)
    @with_api
    def _pause(context: CommandContext, which: Any, reason: str) -> None:
        context.done(f"paused {which}", **context.api.change("POST", f"{path(which)}/pause", {"reason": reason}))

    @group.command("resume", help=resume)
    @which
    @with_api
    def _resume(context: CommandContext, which: Any) -> None:
        context.done(f"resumed {which}", **context.api.change("POST", f"{path(which)}/resume"))
