"""How much memory processes hold, and held at most."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass
class Held:
    """Bytes that the processes held together before a block, and at most within it."""

    before: int
    most: int = 0

    @property
    def grown(self) -> int:
        """By how many MiB they grew at most."""
        return (self.most - self.before) >> 20


@contextmanager
def growth(parent: int) -> Iterator[Held]:
    """Measure the resident memory of a process and its children in a block; each counts with its own peak."""
    pids = _family(parent)
    for pid in pids:
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # its peak is what it has now
    held = Held(sum(_kib(pid, "VmRSS") for pid in pids) << 10)
    yield held
    assert _family(parent) == pids, "one died"
    held.most = sum(_kib(pid, "VmHWM") for pid in pids) << 10


def _family(parent: int) -> list[int]:
    return [parent, *(child.pid for child in psutil.Process(parent).children())]


def _kib(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
