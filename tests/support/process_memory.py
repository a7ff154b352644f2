"""How much memory processes hold, and held at most."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass
class Held:
    """Bytes that the processes which serve held together before a block, and at most within it."""

    before: int
    most: int = 0

    @property
    def grown(self) -> int:
        """By how many MiB they grew at most."""
        return (self.most - self.before) >> 20


@contextmanager
def growth(parent: int) -> Iterator[Held]:
    """Measure the resident memory of a process's children in a block; each counts with its own peak."""
    children = psutil.Process(parent).children()
    for child in children:
        Path(f"/proc/{child.pid}/clear_refs").write_text("5")  # its peak is what it has now
    held = Held(sum(_kib(child.pid, "VmRSS") for child in children) << 10)
    yield held
    assert [child.pid for child in psutil.Process(parent).children()] == [child.pid for child in children], "one died"
    held.most = sum(_kib(child.pid, "VmHWM") for child in children) << 10


def _kib(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
