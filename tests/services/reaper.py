"""Ends every test server when the tests themselves are gone, however they ended.

Run as a script it is the tests' last child: it holds the other end of a pipe, and when that closes, which happens
on SIGKILL too, it kills what is still registered and removes the folder. A parent-death signal would not do: the
kernel sends it when the *thread* that started a server ends, and never to the server's own children.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

_TELLS_CHILDREN = Path(f"/proc/self/task/{os.getpid()}/children").exists()  # as a kernel with CONFIG_PROC_CHILDREN does


def family(leader: psutil.Process | int) -> list[psutil.Process]:
    """The process, its descendants and whatever shares its session: an orphan keeps the session it was born in.

    Nothing, where the number of a process that has ended means another one by now: the kernel gives it away only when
    nobody is left in the session, and numbers go round within an hour of tests. Each stop of a server asks for it, and
    to read of every process on the machine who its parent is takes ten times as long.
    """
    pid = leader if isinstance(leader, int) else leader.pid
    if isinstance(leader, psutil.Process) and psutil.pid_exists(pid) and not leader.is_running():
        return []
    ahead, found = [pid, *(each for each in psutil.pids() if _session(each) == pid)], dict[int, psutil.Process]()
    for each in ahead:  # which grows meanwhile
        if each not in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                found[each] = psutil.Process(each)
                ahead += _children(each)
    return list(found.values())


def _session(pid: int) -> int:
    with contextlib.suppress(ProcessLookupError):
        return os.getsid(pid)
    return 0


def _children(pid: int) -> list[int]:
    if not _TELLS_CHILDREN:
        return [child.pid for child in psutil.Process(pid).children()]
    found = []
    with contextlib.suppress(OSError):  # it has ended
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # this one alone has
                found += [int(child) for child in (thread / "children").read_text().split()]
    return found


def alive(process: psutil.Process) -> bool:
    """Whether it still runs; a zombie that only waits for its parent does not.

    A process that is killed is a zombie as soon as its main thread has ended, but its files stay open, and locked,
    until the other threads have.
    """
    try:
        return bool(process.is_running() and (process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1))
    except psutil.NoSuchProcess:
        return False


def end(processes: Iterable[psutil.Process], timeout: float = 10) -> None:
    """SIGKILL them all and return when they are gone; TimeoutError names those that are not."""
    left = list(processes)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    deadline = time.monotonic() + timeout
    while left := [process for process in left if alive(process)]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"still running after SIGKILL: {left}")
        time.sleep(0.005)


def main() -> None:
    """Follow `+pid` and `-pid` lines on stdin until it closes, then end what is left and remove the folder."""
    registered: dict[int, psutil.Process] = {}
    for line in sys.stdin:
        sign, pid = line[0], int(line[1:])
        with contextlib.suppress(psutil.NoSuchProcess):
            if sign == "+":
                registered[pid] = psutil.Process(pid)
            else:
                registered.pop(pid, None)
    for process in registered.values():
        with contextlib.suppress(TimeoutError):
            end(family(process))
    shutil.rmtree(sys.argv[1], ignore_errors=True)


if __name__ == "__main__":
    main()
