"""Groups of commands: what `--help` lists, and what is said of a command that does not exist."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

_MAX_NAME_WIDTH = 20  # of a command, beside which its summary stands


class Group(click.Group):
    """A group whose help has each command's whole first sentence, and that says which command was probably meant."""

    group_class = type  # of the groups in it: its own

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with their summaries."""
        rows = [
            (name, summary(command))
            for name in self.list_commands(ctx)
            if (command := self.get_command(ctx, name)) is not None and not command.hidden
        ]
        write_commands(formatter, "Commands", rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command. Raises `click.UsageError` with the nearest one for an unknown one."""
        if args and not args[0].startswith("-") and not ctx.resilient_parsing and not self.get_command(ctx, args[0]):
            from app.config.errors import nearest  # noqa: PLC0415 - only for a mistake

            names = self.list_commands(ctx)
            close = nearest(args[0], names) or next((name for name in names if name.startswith(args[0])), "")
            ctx.fail(f"No such command {args[0]!r}." + (f" Did you mean {close!r}?" if close else ""))
        return super().resolve_command(ctx, args)


class McGroup(Group):
    """A group whose actions can also be called as `mc` calls them: list for ls, remove for rm."""

    _MC: Mapping[str, str] = {"list": "ls", "remove": "rm"}

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the action of this name, or None."""
        return super().get_command(ctx, self._MC.get(cmd_name, cmd_name))


def summary(command: click.Command) -> str:
    """Return the first sentence of a command's help."""
    return command.get_short_help_str(limit=1000)


def write_commands(formatter: click.HelpFormatter, title: str, rows: Iterable[tuple[str, str]]) -> None:
    """Write a section of commands."""
    named: Sequence[Any] = list(rows)
    if named:
        with formatter.section(title):
            formatter.write_dl(named, col_max=_MAX_NAME_WIDTH)
