"""Consumers from the reference pages that run until they are ended."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator

from tests import services


@contextlib.contextmanager
def following(program: str) -> Iterator[Callable[[], list[str]]]:
    """Run a program; what is given tells the lines that it has printed, and fails when it has ended."""
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
