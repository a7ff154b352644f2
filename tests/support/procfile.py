"""The command lines of the Procfile and of other deployments."""

from __future__ import annotations

from pathlib import Path

import click

from app.cli import bucketwire

ROOT = Path(__file__).parents[2]
PROCESSES = dict(line.split(": ", 1) for line in (ROOT / "Procfile").read_text().splitlines())


def parses(words: list[str]) -> bool:
    """Whether the CLI knows the command and every option; nothing is run."""
    group: click.Command = bucketwire
    context = click.Context(group)
    while isinstance(group, click.Group):
        name, *words = words
        found = group.get_command(context, name)
        assert found is not None, f"there is no command {name}"
        group = found
    group.make_context("x", words)
    return True
