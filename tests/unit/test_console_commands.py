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
# A macro takes the first word from those that call it: `same_commands('target', …)`.
_KIND = re.compile(r"\bsame_commands\('([a-z]+)',")


def written() -> Iterator[tuple[str, list[str]]]:
    """Yield the words of each command that are the same whatever is shown, and where it is written."""
    texts = {path: path.read_text() for path in sorted([*CONSOLE.rglob("*.html"), *CONSOLE.rglob("*.py")])}
    kinds = sorted({kind for text in texts.values() for kind in _KIND.findall(text)})
    for path, text in texts.items():
        for call in _CALL.finditer(text):
            for kind in kinds if call[1].startswith("kind,") else [""]:
                arguments = call[1].replace("kind,", f"'{kind}',", 1) if kind else call[1]
                words = re.findall(r"""(?:^|[(,])\s*(['"])([a-z-]+)\1""", arguments)
                if words and not arguments.startswith("*words"):
                    yield f"{path.relative_to(CONSOLE)}: command({arguments})", [word for _, word in words]


EVERY = dict(written())


def test_there_are_commands_to_look_at() -> None:
    assert len(EVERY) > 25
    assert ["rule", "ls"] in EVERY.values()
    assert ["target", "show"] in EVERY.values()
    assert ["source", "show"] in EVERY.values()


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
