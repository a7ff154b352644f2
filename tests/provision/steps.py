"""What every recipe is made of: run a command, find a tool, and put a folder in its place as a whole."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

BUILD_TIMEOUT = 1800  # seconds
LONG_BUILD_TIMEOUT = 7200  # of a server of some hundred packages, while other work has the processor
PROGRESS_SECONDS = 30.0  # between two lines about a command that still runs
_REASON_LINES = 3
_MAX_LINE_CHARACTERS = 100

_printing = threading.Lock()
_provided = threading.local()  # `name`: of the server that this thread provides


class CannotProvideError(Exception):
    """This machine cannot have the server; the message is the reason."""


@contextlib.contextmanager
def providing(name: str) -> Iterator[None]:
    """What `show` prints in the block is about the server called `name`."""
    _provided.name = name
    try:
        yield
    finally:
        _provided.name = ""


def show(text: str) -> None:
    """Print a line about the server that this thread provides."""
    with _printing:
        sys.stdout.write(f"{getattr(_provided, 'name', ''):15} {text}\n")
        sys.stdout.flush()


def run(argv: Sequence[str | Path], *, cwd: Path | None = None, limit: float | None = None, **env: str) -> None:
    """Run to the end at low priority, for so many seconds; the last lines of its output are the error's reason.

    While it runs, a line every half a minute says how far its output has come.
    """
    limit = BUILD_TIMEOUT if limit is None else limit
    try:
        child = subprocess.Popen(
            ["nice", "-n", "10", *map(str, argv)],
            cwd=cwd,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except FileNotFoundError as missing:
        raise CannotProvideError(f"{missing.filename} is not installed") from missing
    with child:
        output = _Output(child)
        output.start()
        began = time.monotonic()
        while child.poll() is None:
            try:
                child.wait(PROGRESS_SECONDS)
            except subprocess.TimeoutExpired as late:
                if time.monotonic() - began > limit:
                    child.kill()
                    output.join()
                    raise CannotProvideError(f"{argv[0]} took more than {limit} s") from late
                show(f"{Path(argv[0]).name} runs for {time.monotonic() - began:.0f} s{output.progress()}")
        output.join()
    if child.returncode:
        raise CannotProvideError(f"{argv[0]} ended with {child.returncode}: {' / '.join(output.last)}")


class _Output(threading.Thread):
    """Reads what a command says; `last` has its last lines."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        super().__init__(daemon=True)
        assert child.stdout is not None
        self._lines = child.stdout
        self._count = 0
        self.last: deque[str] = deque(maxlen=_REASON_LINES)

    def run(self) -> None:
        for line in self._lines:
            if text := line.strip():
                self._count += 1
                self.last.append(text)

    def progress(self) -> str:
        """How many lines there are, and the last one."""
        lines = list(self.last)
        return f", {self._count:,} lines of output, the last: {lines[-1][:_MAX_LINE_CHARACTERS]}" if lines else ""


def tool(name: str) -> str:
    """The path of a build tool that has to be here already."""
    found = shutil.which(name)
    if not found:
        raise CannotProvideError(f"needs {name}, which is not installed")
    return found


@contextlib.contextmanager
def building(place: Path) -> Iterator[Path]:
    """A fresh folder that becomes `place` by one rename when the block succeeds, else nothing is left of it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{place.name}-") as scratch:
        made = Path(scratch) / place.name
        made.mkdir()
        yield made
        if place.exists():
            shutil.rmtree(place)
        made.rename(place)


def as_root() -> list[str]:
    """MySQL and MariaDB refuse to run as root unless it is asked for."""
    return ["--user=root"] if os.geteuid() == 0 else []
