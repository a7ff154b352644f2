"""The page of the command line says what the commands say."""

from __future__ import annotations

import re
from pathlib import Path

from app.cli import COMMANDS
from app.cli.reference_page import page

PAGE = Path(__file__).parents[2] / "docs/reference/cli.md"


def test_the_page_is_as_the_commands_are() -> None:
    assert PAGE.read_text() == page(), "make it anew: python -m app.cli.reference_page > docs/reference/cli.md"


def test_every_command_is_on_it() -> None:
    assert set(re.findall(r"^## bucketwire (\S+)$", page(), re.MULTILINE)) == set(COMMANDS)
