"""Take turns with other benchmarks on a machine that is busy: one at a time, at real-time priority."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

_PRIORITY = 10


@contextmanager
def turn(lock: str) -> Iterator[None]:
    """Hold the file `lock` inside, and run this process and its descendants, servers too, at real-time priority.

    An empty name: do neither. What is prepared before and after runs as usual.
    """
    if not lock:
        yield
        return
    with Path(lock).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _schedule(os.SCHED_RR, _PRIORITY)
        try:
            yield
        finally:
            _schedule(os.SCHED_OTHER, 0)


def _schedule(policy: int, priority: int) -> None:
    this = psutil.Process()
    for process in (this, *this.children(recursive=True)):
        for thread in _threads(process.pid):
            with suppress(ProcessLookupError):
                os.sched_setscheduler(thread, policy, os.sched_param(priority))


def _threads(pid: int) -> list[int]:
    try:
        return [int(thread.name) for thread in Path(f"/proc/{pid}/task").iterdir()]
    except FileNotFoundError:
        return []
