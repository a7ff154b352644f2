"""The consumers on the reference pages of the targets, run as they stand there."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tests import services

PAGES = Path(__file__).parents[2] / "docs" / "reference" / "targets"


def page(type_: str) -> str:
    """The reference page of a type of target."""
    return (PAGES / f"{type_}.md").read_text(encoding="utf-8")


def consumers(type_: str, **places: str) -> list[str]:
    """The programs on a page, with the places in them changed to those of this test."""
    found = re.findall(r"```python\n(.*?)```", page(type_), re.DOTALL)
    for old, new in places.items():
        found = [program.replace(old, new) for program in found]
    return found


def output(program: str) -> list[str]:
    """The lines that a program prints, which ends by itself."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@contextlib.contextmanager
def following(program: str) -> Iterator[Callable[[], list[str]]]:
    """Run a program that does not end by itself; the function returns its lines so far, and fails if it ended."""
    log = services.new_folder("consumer") / "log"
    with log.open("w") as file:
        child = subprocess.Popen([sys.executable, "-u", "-c", program], stdout=file, stderr=subprocess.STDOUT)

    def lines() -> list[str]:
        assert child.poll() is None, log.read_text()
        return log.read_text().splitlines()

    try:
        yield lines
    finally:
        child.kill()
        child.wait()
