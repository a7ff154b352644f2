"""Stop the service's processes in order, on request and also if the supervisor was killed.

Run as a script, it reads `+<stage> <pid>` and `-<stage> <pid>` lines from the supervisor. When the pipe closes, which
the kernel also does if the supervisor was killed, it stops every process group that is still registered, stage by
stage. A parent-death signal is not enough: it reaches all processes at once, and never the children's own children.

It imports only the standard library, so that this additional process stays small.
"""

import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

PATIENCE = {0: 1.5, 1: 1.0, 2: 4.5, 3: 0.7, 4: 0.8}  # seconds for each stage, in sum well below the promised ten


def main() -> None:
    """Follow the supervisor until its end of the pipe closes, then stop the remaining process groups."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a guard that ends first protects nothing
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
    """Send SIGTERM to each group's leader, and after `patience` seconds SIGKILL to the groups that remain."""
    remaining = list(groups)
    for leader in remaining:
        _signal(leader, signal.SIGTERM)
    deadline = time.monotonic() + patience
    while remaining and time.monotonic() < deadline:
        remaining = [leader for leader in remaining if not _has_ended(leader)]
        time.sleep(0.02)
    for leader in remaining:
        _signal_group(leader, signal.SIGKILL)


def _has_ended(leader: int) -> bool:
    """Return whether the leader has ended; if so, kill the children that it left behind."""
    try:
        os.kill(leader, 0)
        stat = Path(f"/proc/{leader}/stat").read_text(errors="replace")
        ended = stat.rpartition(")")[2].split()[0] == "Z"  # there may be no parent that waits for it
    except ProcessLookupError:
        ended = True
    except OSError:
        ended = False  # a system without /proc, where kill() found the process
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
