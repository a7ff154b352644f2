"""Measure what the whole service costs while nothing happens, as `bucketwire up` starts it without any setting.

    python -m bench.idle [--seconds 30]

Processor time of all its processes in percent of one core, and their memory as PSS, in which a shared page is divided
among those that share it. Other work on the machine makes the processor time of the same instructions longer.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from bench.report import Aim, show
from tests import services

CPU_AIM, MEMORY_AIM = 2.0, 350.0  # percent of a core; MB
_SETTLES = 20.0  # seconds after the start until nothing of it is left to do
_ROLES = {
    "fork server": "fork server", "guard": r"guard\.py", "broker": "redis-server", "API": "gunicorn|bucketwire api",
    "beat": " beat", "drain": "drain", "targets": "targets", "flower": " flower", "up": " up",
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=30)
    options = parser.parse_args()
    with running() as service:
        time.sleep(_SETTLES)
        processes = [service, *service.children(recursive=True)]
        began, before = time.perf_counter(), {one: spent(one) for one in processes}
        time.sleep(options.seconds)
        seconds = time.perf_counter() - began
        used = [(role(one), 100 * (spent(one) - before[one]) / seconds, pss(one)) for one in processes]
    rows = [_row(name, [one for one in used if one[0] == name]) for name in dict.fromkeys(name for name, *_ in used)]
    total = _row("all", used)
    cpu, memory = total["CPU, %"], total["PSS, MB"]
    aims = [
        Aim(cpu, CPU_AIM, "idle service, processor time", unit="% of a core", most=True),
        Aim(memory, MEMORY_AIM, "idle service, memory", unit="MB", most=True),
    ]
    show("idle", "The idle service, as `make run` starts it", [*rows, total], aims=aims)


def _row(name: str, used: Sequence[tuple[str, float, float]]) -> dict[str, Any]:
    cpu, memory = (sum(column) for column in list(zip(*used, strict=True))[1:])
    return {"role": name, "processes": len(used), "CPU, %": cpu, "PSS, MB": memory}


@contextmanager
def running() -> Iterator[psutil.Process]:
    """Run `bucketwire up` in a new folder, without any setting of this environment."""
    folder = services.new_folder("idle")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("BUCKETWIRE_", "MINIO_"))}
    environment |= {"BUCKETWIRE_DATA_DIR": str(folder), "BUCKETWIRE_LISTEN": f"{services.LOOPBACK}:0"}
    console = folder / "console"
    with console.open("wb") as output:
        command = [str(Path(sys.executable).with_name("bucketwire")), "up"]
        started = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        services.until(lambda: "Ctrl-C" in console.read_text(), 120, what="the service")
        yield psutil.Process(started.pid)
    finally:
        started.send_signal(signal.SIGINT)
        started.wait(60)


def spent(process: psutil.Process) -> float:
    """Return the processor time of a process, in seconds."""
    times = process.cpu_times()
    return float(times.user + times.system)


def pss(process: psutil.Process) -> float:
    """Return the proportional set size of a process, in MB; 0 if it has ended."""
    with suppress(OSError):
        found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{process.pid}/smaps_rollup").read_text(), re.MULTILINE)
        return int(found[1]) / 1024 if found else 0.0
    return 0.0


def role(process: psutil.Process) -> str:
    """Return which part of the service this is, by its command line."""
    command = " ".join(process.cmdline())
    return next((name for name, pattern in _ROLES.items() if re.search(pattern, command)), "other")


if __name__ == "__main__":
    main()
