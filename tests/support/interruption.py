"""Ctrl-C ends a run of several processes at once, with every server that they have started.

Left to themselves, pytest's workers would end one fixture after the other, each of which waits for its server to stop,
and a worker that waits in a driver would not notice the signal at all. `make` waits for its command when it is
interrupted, and does not pass the signal on: only a terminal sends it to all.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType

import psutil
import pytest

from tests.services import reaper

_GONE_WITHIN = 8  # seconds
_CAUGHT = 1 << (signal.SIGINT - 1)  # in the mask of caught signals of /proc/PID/status


def watch(config: pytest.Config) -> None:
    """End this run at SIGINT, also if only its parent gets it and that is `make`; a second one ends pytest itself."""
    if not config.getoption("numprocesses", None):
        return  # a worker, or a run of one process, whose fixtures end in order
    signal.signal(signal.SIGINT, _interrupted)
    parent = os.getppid()
    if _catches_interrupts(parent):  # as make does until the first one comes
        threading.Thread(target=_follow, args=[parent], daemon=True).start()


def _interrupted(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    own = psutil.Process()
    workers, everything = own.children(), own.children(recursive=True)
    for process in [*workers, *everything]:  # the workers first, so that nothing is started any more
        with contextlib.suppress(psutil.NoSuchProcess):
            if str(Path(reaper.__file__)) not in process.cmdline():  # it removes its worker's files, and ends then
                process.kill()
    deadline = time.monotonic() + _GONE_WITHIN
    while any(reaper.alive(process) for process in everything) and time.monotonic() < deadline:
        time.sleep(0.05)
    raise KeyboardInterrupt


def _follow(parent: int) -> None:
    while os.getppid() == parent and _catches_interrupts(parent):
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGINT)


def _catches_interrupts(pid: int) -> bool:
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
        return Path(f"/proc/{pid}/comm").read_text().strip() == "make" and bool(int(caught.split()[1], 16) & _CAUGHT)
    return False
