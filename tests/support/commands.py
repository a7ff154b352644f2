"""Every command of `bucketwire` by its path, groups too."""

from __future__ import annotations

from collections.abc import Iterator

import click

from app.cli import bucketwire


def commands(group: click.Group, *path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield every command by its path, groups too."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield " ".join([*path, name]), command
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)


EVERY = dict(commands(bucketwire))
