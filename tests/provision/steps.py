"""What every recipe is made of: run a command, find a tool, and put a folder in its place as a whole."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

BUILD_TIMEOUT = 1800  # seconds


class CannotProvideError(Exception):
    """This machine cannot have the server; the message is the reason."""


def run(argv: Sequence[str | Path], *, cwd: Path | None = None, **env: str) -> None:
    """Run to the end at low priority; the last lines of its output are the error's reason."""
    command = ["nice", "-n", "10", *map(str, argv)]
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BUILD_TIMEOUT,
            check=False,
        )
    except FileNotFoundError as missing:
        raise CannotProvideError(f"{missing.filename} is not installed") from missing
    except subprocess.TimeoutExpired as late:
        raise CannotProvideError(f"{argv[0]} took more than {BUILD_TIMEOUT} s") from late
    if done.returncode:
        reason = " / ".join(done.stdout.strip().splitlines()[-3:])
        raise CannotProvideError(f"{argv[0]} ended with {done.returncode}: {reason}")


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
