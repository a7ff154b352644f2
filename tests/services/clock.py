"""A wall clock of a process's own, which can be set while it runs: a few lines of C, preloaded."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from tests.services.server_process import new_folder, run_to_end

_SOURCE = Path(__file__).with_name("clock.c")


@cache
def _library() -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler, to make a clock with that can be set")
    folder = new_folder("clock")
    run_to_end([compiler, "-shared", "-fPIC", "-O1", "-o", folder / "clock.so", _SOURCE, "-ldl"], folder / "log")
    return folder / "clock.so"


@dataclass
class Clock:
    """Processes that have `env` in their environment live `ahead` seconds after, or before, everybody else."""

    folder: Path = field(default_factory=lambda: new_folder("clock"))

    def __post_init__(self) -> None:
        self._library, self._offset = _library(), self.folder / "offset"
        self._offset.write_bytes(struct.pack("q", 0))

    @property
    def env(self) -> Mapping[str, str]:
        """What a process needs to live by this clock."""
        return {"LD_PRELOAD": str(self._library), "CLOCK_OFFSET": str(self._offset)}

    def set(self, ahead: int) -> None:
        """From now on, also for those that run."""
        with self._offset.open("r+b") as file:
            file.write(struct.pack("q", ahead))
