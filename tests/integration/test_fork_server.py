"""The fork server, in processes of a test's own: its children are the supervisor's, and outlive it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.services import reaper, until

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no fork server elsewhere")

COMMON = """
import asyncio, os, signal, sys, time
from pathlib import Path
from app.supervisor.supervisor import WORKERS, Child
from app.supervisor.fork_server import ForkServer
from app.supervisor.supervisor import Supervisor

folder = Path(sys.argv[1])

def main(arguments):
    import tests.support.sample_events  # imported already
    descriptors = sorted(os.listdir("/proc/self/fd"))  # one of them is that of the listing
    print("runs", *arguments, os.environ.get("OWN"), os.getpid(), os.getppid(), os.getsid(0), descriptors, flush=True)
    if arguments[0] == "sleep":
        time.sleep(60)
    sys.exit(int(arguments[1]))

def output(name):
    return (folder / f"{name}.log").open("ab")
"""


def argv(folder: Path, script: str) -> list[str]:
    path = folder / "script.py"
    path.write_text(COMMON + textwrap.dedent(script))
    return [sys.executable, str(path), str(folder)]


ENVIRONMENT = {"PYTHONPATH": str(ROOT)}


def run(folder: Path, script: str) -> None:
    done = subprocess.run(
        argv(folder, script), env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


@contextlib.contextmanager
def running(folder: Path, script: str) -> Iterator[psutil.Process]:
    """The script for as long as the block lasts, and killed with its children then."""
    with subprocess.Popen(argv(folder, script), env=ENVIRONMENT) as process:
        family = psutil.Process(process.pid)
        try:
            yield family
        finally:
            children = family.children(recursive=True) if process.poll() is None else []
            process.kill()
            reaper.end(children)


def test_a_child_is_the_supervisors_own_with_its_arguments_variables_log_and_exit_code(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        held = open(folder / "held", "w")
        forks = ForkServer(["tests.support.sample_events", "there.is.no.such.module"], main)
        with output("one") as log:
            pid = forks.start(["exit", "7"], {"OWN": "value"}, log.fileno())
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        (folder / "pids").write_text(f"{pid} {os.getpid()}")
        forks.close()
        """,
    )
    pid, parent = (tmp_path / "pids").read_text().split()
    assert (tmp_path / "one.log").read_text() == f"runs exit 7 value {pid} {parent} {pid} ['0', '1', '2', '3']\n"


def test_a_child_is_told_from_others_in_the_list_of_processes(tmp_path: Path) -> None:
    script = """
        forks = ForkServer([], main)
        with output("one") as log:
            forks.start(["sleep", "1"], {}, log.fileno())
        time.sleep(60)
        """
    with running(tmp_path, script) as process:
        until(lambda: (tmp_path / "one.log").exists() and (tmp_path / "one.log").read_text(), 30, what="the child")
        titles = {" ".join(one.cmdline()).strip(): one.name() for one in process.children()}
        assert titles == {"bucketwire sleep 1": "sleep 1", "bucketwire fork server": "fork server"}


def test_children_outlive_the_server_and_the_next_are_started_without_it(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        forks = ForkServer([], main)

        def runs():
            path = folder / "one.log"
            return path.read_text().splitlines() if path.exists() else []

        async def until(condition):
            async with asyncio.timeout(30):
                while not condition():
                    await asyncio.sleep(0.01)

        async def start(keeping):
            command = [sys.executable, "-c", "import time; print('afresh', flush=True); time.sleep(60)"]
            keeping.keep([Child("one", WORKERS, command, {"OWN": "value"}, bucketwire=("sleep", "0"))])
            await until(lambda: len(runs()) == 1)
            os.kill(forks.pid, signal.SIGKILL)
            await asyncio.sleep(0.2)
            pid = int(runs()[0].split()[4])
            os.kill(pid, 0)
            os.kill(pid, signal.SIGTERM)
            await until(lambda: len(runs()) == 2)
            os.kill(os.getpid(), signal.SIGINT)

        said = []
        asyncio.run(Supervisor(folder, said.append, forks=forks).run(start))
        (folder / "said").write_text(said[0])
        """,
    )
    assert (tmp_path / "said").read_text().startswith("one ended (SIGTERM); restarting it in 0.5 s")
    assert (tmp_path / "one.log").read_text().splitlines()[1:] == ["afresh"]


def test_what_others_leave_behind_is_reaped_and_a_child_of_ours_is_not(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        from app.supervisor.fork_server import reap_strays
        import subprocess

        forks = ForkServer([], main)
        own = subprocess.Popen(["true"], start_new_session=True)
        os.waitid(os.P_PID, own.pid, os.WEXITED | os.WNOWAIT)
        reap_strays()
        assert own.wait() == 0
        left = int(subprocess.run(["sh", "-c", "sleep 0 & echo $!"], stdout=subprocess.PIPE, check=True).stdout)
        end = time.monotonic() + 30
        while Path(f"/proc/{left}").exists():
            reap_strays()
            assert time.monotonic() < end, "a zombie"
            time.sleep(0.01)
        forks.close()
        """,
    )


def test_the_server_ends_with_its_supervisor(tmp_path: Path) -> None:
    script = """
        forks = ForkServer([], main)
        (folder / "pid").write_text(str(forks.pid))
        time.sleep(60)
        """
    with running(tmp_path, script) as process:
        until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), 30, what="the server")
        server = psutil.Process(int((tmp_path / "pid").read_text()))
        process.kill()
        until(lambda: not reaper.alive(server), 30, what="the end of the server")
