"""SIGINT to `make test` ends it, its workers and every server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from tests import services
from tests.services import reaper

TOP = Path(__file__).parents[2]
ENDS_WITHIN = 10  # seconds, on a machine that is not busy
CONFTEST = """
from tests.support import interruption

def pytest_configure(config):
    interruption.watch(config)
"""
# Neither test ends by itself: no signal reaches the one, as in a driver, and the other stops its server too late.
TESTS = {
    "driver": """
with services.redis() as server:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    report(server)
    time.sleep(600)
""",
    "late": """
server = services.redis()
try:
    report(server)
    time.sleep(600)
finally:
    time.sleep(600)
""",
}
FILE = """
import os
import signal
import time
from pathlib import Path

from tests import services

def report(server):
    made = Path(__file__).with_suffix(".new")
    made.write_text(f"{os.getpid()} {server.pid}")
    made.rename(made.with_suffix(".pids"))

def test_endless():
"""


@pytest.mark.nightly("servers that end with the process that started them, in test_services.py")
@pytest.mark.parametrize("to_all", [True, False], ids=["terminal", "make alone"])
def test_an_interrupted_run_ends_with_its_workers_and_servers(to_all: bool, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for name, lines in TESTS.items():
        (tmp_path / f"test_{name}.py").write_text(FILE + textwrap.indent(lines, "    "))
    plugins = "-p xdist.plugin -p pytest_rerunfailures -p pytest_timeout -p no:cacheprovider"
    pytest_ = f"{sys.executable} -m pytest {plugins} -n 2 --dist loadfile -o addopts= --rootdir {tmp_path}"
    (tmp_path / "Makefile").write_text(f"test:\n\t{pytest_} {tmp_path}\n")
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(TOP), "TMPDIR": str(services.new_folder("run"))}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # three processes would import for a second each
    with (tmp_path / "output").open("wb") as output:
        make = subprocess.Popen(
            ["make", "-C", tmp_path, "test"], stdout=output, stderr=output, env=environment, start_new_session=True
        )
    try:
        reports = [tmp_path / f"test_{name}.pids" for name in TESTS]
        services.until(lambda: all(report.exists() for report in reports), 120)
        pids = [int(pid) for report in reports for pid in report.read_text().split()]
        running = [psutil.Process(pid) for pid in pids] + psutil.Process(make.pid).children(recursive=True)
        assert len({process.pid for process in running}) >= 7  # pytest, two workers, two reapers, two servers
        if to_all:
            os.killpg(make.pid, signal.SIGINT)
        else:
            make.send_signal(signal.SIGINT)
        services.until(lambda: make.poll() is not None, ENDS_WITHIN)
        assert make.returncode not in (0, None), (tmp_path / "output").read_text()
        services.until(lambda: not any(reaper.alive(process) for process in running), ENDS_WITHIN)
        assert list(Path(environment["TMPDIR"]).glob("bucketwire-*")) == []
    finally:
        reaper.end(reaper.family(make.pid))
        make.wait()
