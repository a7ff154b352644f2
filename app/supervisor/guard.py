"""Ends the service's processes in their order, whether it is asked to or the supervisor was killed.

Run as a script, it reads `+<stage> <pid>` and `-<stage> <pid>` lines from the supervisor. When the pipe closes, which
the kernel does also for one that was killed, every process group that is still registered is ended, stage by stage.
A parent-death signal would not do: it is sent to all at once and never to the children's own children.

Nothing but the standard library: it is one more process for as long as the service runs, and a small one.
"""

import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

PATIENCE = {0: 1.5, 1: 1.0, 2: 4.5, 3: 0.7, 4: 0.8}  # seconds for each stage, together well below the promised ten


def main() -> None:
    """Follow the supervisor until its end of the pipe closes, then end what is left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a guard that goes first guards nothing
    groups: set[tuple[int, int]] = set()
    for line in sys.stdin:
        stage, pid = map(int, line[1:].split())
        if line[0] == "+":
            groups.add((stage, pid))
        else:
            groups.discard((stage, pid))
    for stage in sorted({stage for stage, _ in groups}):
        end([pid for its_stage, pid in groups if its_stage == stage], PATIENCE[stage])


def end(groups: Iterable[int], patience: float) -> None:
    """SIGTERM each group's leader, and after `patience` seconds SIGKILL whoever is left of the groups."""
    left = list(groups)
    for leader in left:
        _signal(leader, signal.SIGTERM)
    deadline = time.monotonic() + patience
    while left and time.monotonic() < deadline:
        left = [leader for leader in left if not _gone(leader)]
        time.sleep(0.02)
    for leader in left:
        _signal_group(leader, signal.SIGKILL)


def _gone(leader: int) -> bool:
    """Whether the leader has ended; then its children, which were its own to end, are ended here."""
    try:
        os.kill(leader, 0)
        stat = Path(f"/proc/{leader}/stat").read_text(errors="replace")
        ended = stat.rpartition(")")[2].split()[0] == "Z"  # nobody may be there to wait for it
    except ProcessLookupError:
        ended = True
    except OSError:
        ended = False  # a system without /proc, where kill() has already answered
    if ended:
        _signal_group(leader, signal.SIGKILL)
    return ended


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _signal_group(leader: int, number: signal.Signals) -> None:
    try:
        os.killpg(leader, number)
    except (ProcessLookupError, PermissionError):
        return


if __name__ == "__main__":
    main()
