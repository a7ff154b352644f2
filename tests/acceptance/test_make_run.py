"""The README's three commands on a fresh copy of the tree: everything is made, runs, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import httpx
import orjson
import psutil
import pytest

from tests import services
from tests.services import reaper, until
from tests.support.clone import copy_tree

ROOT = Path(__file__).parents[2]
PROMISED = 10  # seconds in which Ctrl-C ends everything
KILLED = 15  # seconds in which the guard has ended everything that a killed supervisor left

pytestmark = [
    pytest.mark.nightly(
        "what `bucketwire up` starts and leaves behind, in cli/test_up.py, test_supervisor.py; test_flower.py"
    ),
    pytest.mark.timeout(600),
]  # a first installation takes its time


@dataclass(eq=False)
class Whole(services.Server):
    """`make run` in a copy of the tree, with its own virtual environment."""

    name: ClassVar[str] = "make-run"
    patience: ClassVar[float] = 60

    clone: Path

    def check(self) -> None:
        """Nothing but Python is needed."""

    def prepare(self) -> None:
        self.log = self.clone / "console.log"

    def argv(self) -> Sequence[str | Path]:
        self.log.unlink(missing_ok=True)
        return ["make", "run"]

    def env(self) -> Mapping[str, str]:
        return {"BUCKETWIRE_LISTEN": f"{services.LOOPBACK}:{self.port}"}

    def ping(self) -> None:
        assert "Ctrl-C stops everything." in self.log.read_text()

    @property
    def console(self) -> str:
        return self.log.read_text()

    @property
    def up(self) -> psutil.Process:
        """The supervisor itself, below make."""
        return next(one for one in psutil.Process(self.pid).children() if one.cmdline()[-1] == "up")

    def line_after(self, words: str) -> str:
        """The command that the console shows below these words."""
        return self.console.split(words, 1)[1].strip().splitlines()[0].strip()

    def shell(self, line: str) -> str:
        """What a person gets who types the line in the clone."""
        return subprocess.run(
            ["bash", "-c", line], cwd=self.clone, capture_output=True, text=True, check=True, timeout=60
        ).stdout

    def interrupt(self) -> int:
        """Ctrl-C at the terminal: SIGINT to everything in the terminal's foreground; the exit code of `make`."""
        assert self._child is not None
        os.killpg(self.pid, signal.SIGINT)
        return self._child.wait(PROMISED)


@pytest.fixture(scope="module")
def clone() -> Path:
    """The tree as a fresh clone would have it, with what is not committed yet, and installed for real."""
    folder = copy_tree(services.new_folder("clone") / "bucketwire")
    done = subprocess.run(
        ["make", ".venv/.installed"], cwd=folder, capture_output=True, text=True, timeout=500, check=False
    )  # fmt: skip
    if done.returncode:
        if os.environ.get("CI") == "true":
            pytest.fail(f"nothing could be installed: {done.stdout}{done.stderr}")
        pytest.skip(f"nothing could be installed: {(done.stderr.strip() or 'no reason').splitlines()[-1]}")
    return folder


@pytest.fixture(scope="module")
def made(clone: Path) -> Iterator[Whole]:
    with Whole(clone=clone) as running:
        yield running


@pytest.fixture
def whole(made: Whole) -> Whole:
    """The service running, whatever an earlier test did to it."""
    if not made.running:
        made.kill()
        made.start()
    return made


PARTS = ("-server unixsocket:", " api", "--only drain", "--only targets", " beat", " flower", "fork server", "guard.py")


def everything(whole: Whole) -> list[psutil.Process]:
    """Every process of the service, the guard and the embedded Redis included; the API may answer before all run."""
    members: list[psutil.Process] = []

    def missing() -> list[str]:
        members[:] = reaper.family(whole.pid)
        names = " ".join(name for one in members for name in _command_line(one))
        return [part for part in PARTS if part not in names]

    until(lambda: not missing(), 30, what="every process")
    return members


def _command_line(process: psutil.Process) -> list[str]:
    with suppress(psutil.NoSuchProcess):
        return [" ".join(process.cmdline())]
    return []


def test_the_first_event_is_delivered_and_seen_by_the_lines_that_are_printed(whole: Whole) -> None:
    answer = orjson.loads(whole.shell(whole.line_after("Post an event:")))
    [record] = orjson.loads((ROOT / "examples" / "event.json").read_bytes())["Records"]

    assert answer["recorded"] + answer["repeated"] == 1
    see = whole.line_after("See it delivered:")
    until(lambda: "plain/a.txt" in whole.shell(see), 20, what="the event at the sample target")
    [got] = orjson.loads(whole.shell(f"{see} --json"))
    assert got["record"] == record
    assert got["object"] == "plain/a.txt"


def test_flower_shows_the_delivery_and_the_api_describes_itself(whole: Whole) -> None:
    post, data = re.search(r"curl -sS (\S+) .*--data @(\S+)", whole.line_after("Post an event:")).groups()  # type: ignore[union-attr]  # the line has this form
    body = (whole.clone / data).read_bytes().replace(b"a.txt", b"flower.txt")
    httpx.post(post, content=body).raise_for_status()

    flower = re.search(r"Flower +(\S+)", whole.console).group(1)  # type: ignore[union-attr]  # as above
    tasks = f"{flower}/api/tasks?taskname=deliver&state=SUCCESS"
    until(lambda: httpx.get(tasks).json(), 20, what="a delivery in Flower")
    [task, *_] = httpx.get(tasks).json().values()
    assert task["args"].startswith("('arn:minio:sqs::sample:redis',"), task
    page = httpx.get(re.search(r"Console +(\S+)", whole.console).group(1))  # type: ignore[union-attr]  # as above
    assert (page.status_code, "<h1>Overview</h1>" in page.text) == (200, True)
    assert "redis:sample" in page.text
    assert f'href="{flower.rstrip("/")}/"' in httpx.get(f"{page.url}processes").text
    assert httpx.get(whole.console.split("described at ")[1].split()[0]).json()["openapi"].startswith("3.")


def test_every_command_of_the_readme_and_its_tour_works(whole: Whole) -> None:
    readme = (ROOT / "README.md").read_text()
    start, *lines = [
        line
        for title in ("## Three commands\n", "## The tour\n")
        for block in re.findall(r"```sh\n(.*?)```", readme.split(title)[1].split("\n## ")[0], re.DOTALL)
        for line in block.splitlines()
    ]
    assert start == "make run"  # which the fixture has typed
    assert len(lines) > 10

    for line in lines:
        whole.shell("set -e -o pipefail; " + line.replace("127.0.0.1:8730", f"{services.LOOPBACK}:{whole.port}"))

    states = f"{shlex.quote(str(whole.clone / '.venv/bin/bucketwire'))} status --json"

    def delivered() -> dict[str, int]:
        return {f"{row['type']}:{row['name']}": row["events"]["delivered"] for row in orjson.loads(whole.shell(states))}

    until(lambda: delivered()["redis:mirror"] >= 2, 30, what="the events of the tour at the mirror")


def test_ctrl_c_ends_everything_cleanly_and_a_second_start_remembers_what_was_recorded(whole: Whole) -> None:
    whole.shell(whole.line_after("Post an event:"))
    members = everything(whole)

    code = whole.interrupt()  # within ten seconds

    assert not [one for one in members if reaper.alive(one)]
    assert whole.console.rstrip().endswith("all ended"), whole.console
    assert code in (0, 2, -signal.SIGINT)  # make's own way of saying that it was interrupted
    assert not (whole.clone / "var" / "redis.sock").exists()
    whole.kill()
    whole.start()

    answer = orjson.loads(whole.shell(whole.line_after("Post an event:")))
    assert (answer["recorded"], answer["repeated"]) == (0, 1)
    shown = whole.shell(f"{shlex.quote(str(whole.clone / '.venv/bin/bucketwire'))} doctor --json || true")
    assert all(one["grade"] == "ok" for one in orjson.loads(shown)["findings"] if one["subject"] == "counters")


def test_nothing_outlives_a_supervisor_that_is_killed_and_the_next_one_starts(whole: Whole) -> None:
    members = [one for one in everything(whole) if one.pid != whole.pid]

    whole.up.kill()

    until(lambda: not any(map(reaper.alive, members)), KILLED, what="the end of every process")
    whole.kill()
    whole.start()
    everything(whole)
