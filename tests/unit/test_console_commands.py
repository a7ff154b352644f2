"""The commands that the console shows are there, with the options that it gives."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from app.cli import bucketwire
from spark_jobs.commands.reconcile import run as spark_run

CONSOLE = Path(__file__).parents[2] / "app/console"
# What a page makes a command of: `command('rule', 'ls', bucket)`, in a template or a view.
_CALL = re.compile(r"\bcommand\(((?:[^()]|\([^()]*\))*)\)")


def written() -> Iterator[tuple[str, list[str]]]:
    """Yield the words of each command that are the same whatever is shown, and where it is written."""
    for path in sorted([*CONSOLE.rglob("*.html"), *CONSOLE.rglob("*.py")]):
        for call in _CALL.finditer(path.read_text()):
            words = re.findall(r"""(?:^|[(,])\s*(['"])([a-z-]+)\1""", call[1])
            if words and not call[1].startswith("*words"):
                yield f"{path.relative_to(CONSOLE)}: {call[0]}", [word for _, word in words]


EVERY = dict(written())


def test_there_are_commands_to_look_at() -> None:
    assert len(EVERY) > 25
    assert ["rule", "ls"] in EVERY.values()


@pytest.mark.parametrize("place", EVERY)
def test_each_is_a_command_with_these_options(place: str) -> None:
    words = list(EVERY[place])
    command: click.Command = bucketwire
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(click.Context(command), words.pop(0))
        assert found is not None, place
        command = found
    if command.name == "run":  # its options are the job's
        command = spark_run
    options = {name for param in command.params for name in param.opts}
    assert {word for word in words if word.startswith("--")} <= options
