"""Parse lines of the section `api`: `api sync_events=on`, beside those of targets."""

import re

from app.config.api_settings import SECTION, api_texts
from app.config.errors import BadSettings, Problem
from app.config.formats.notify_lines import parse_pairs

_HEAD = re.compile(rf"\s*{SECTION}(?=\s|$)")


def is_api_line(text: str) -> bool:
    """Return whether a line is of the section `api`."""
    return _HEAD.match(text) is not None


def parse_api_line(text: str, *, backup: bool = False) -> dict[str, str]:
    """Parse one line into texts as `api_texts` returns them. Raises `BadSettings`."""
    line = re.sub(r"\\\r?\n", " ", text).strip()
    head = _HEAD.match(line)
    return api_texts(parse_pairs(line[head.end() if head else 0 :].strip()), backup=backup)


def take_api_lines(text: str, *, backup: bool = False) -> tuple[dict[str, str], str]:
    """Return the texts of the section's lines, and the other lines, which keep their numbers.

    Raises `BadSettings` with the number of the first invalid line.
    """
    texts: dict[str, str] = {}
    others = []
    number = 1
    for line in re.split(r"(?<!\\)\r?\n", text):
        lines = line.count("\n")
        if is_api_line(line):
            try:
                texts |= parse_api_line(line, backup=backup)
            except BadSettings as error:
                raise BadSettings(
                    [Problem(f"line {number}: {p.key}", p.value, p.problem, p.hint) for p in error.problems]
                ) from None
            line = "\n" * lines  # noqa: PLW2901 - the line is replaced
        others.append(line)
        number += lines + 1
    return texts, "\n".join(others)
