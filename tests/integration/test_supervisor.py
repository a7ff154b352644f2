"""The supervisor and its guard, with small processes of a test's own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from app import logs
from app.supervisor import guard, supervisor
from app.supervisor.supervisor import API, BEAT, BROKER, FLOWER, WORKERS, Child, Log, Supervisor, back_off
from tests.services import reaper

# Writes its name when it starts and when it is asked to end, to a file that all share.
SERVANT = """
import os, signal, sys, time
name, shared = sys.argv[1:]
def write(word):
    with open(shared, "a") as file:
        file.write(f"{word} {name} {os.getpid()}\\n")
signal.signal(signal.SIGTERM, lambda *_: (write("-"), sys.exit(0)))
write("+")
time.sleep(60)
"""


def servant(name: str, stage: int, shared: Path) -> Child:
    return Child(name, stage, [sys.executable, "-c", SERVANT, name, str(shared)])


def lines(shared: Path, sign: str) -> list[list[str]]:
    found = shared.read_text().splitlines() if shared.exists() else []
    return [line.split()[1:] for line in found if line.startswith(sign)]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


def supervise(folder: Path, scenario: Callable[[Supervisor], Awaitable[None]]) -> list[str]:
    """Run a scenario, which ends with SIGINT; what was said."""
    said: list[str] = []

    async def all_of_it(keeping: Supervisor) -> None:
        await scenario(keeping)
        os.kill(os.getpid(), signal.SIGINT)

    async def run() -> None:
        await Supervisor(folder, said.append).run(all_of_it)

    asyncio.run(run())
    return said


def test_everything_ends_stage_by_stage(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    stages = {"redis": BROKER, "flower": FLOWER, "worker": WORKERS, "beat": BEAT, "api": API}

    async def scenario(keeping: Supervisor) -> None:
        keeping.keep(servant(name, stage, shared) for name, stage in stages.items())
        await until(lambda: len(lines(shared, "+")) == len(stages))

    supervise(tmp_path, scenario)

    assert [name for name, _ in lines(shared, "-")] == ["api", "beat", "worker", "flower", "redis"]


def test_what_dies_is_started_again_and_leaves_no_children(tmp_path: Path) -> None:
    shared, orphan = tmp_path / "shared", tmp_path / "orphan"
    script = (
        f"import os, subprocess; p = subprocess.Popen(['sleep', '60']); open({str(orphan)!r}, 'w').write(str(p.pid))\n"
    )
    parent = Child("parent", WORKERS, [sys.executable, "-c", script + SERVANT, "parent", str(shared)])

    async def scenario(keeping: Supervisor) -> None:
        keeping.keep([parent])
        await until(lambda: len(lines(shared, "+")) == 1)
        left = psutil.Process(int(orphan.read_text()))
        os.kill(int(lines(shared, "+")[0][1]), signal.SIGKILL)
        await until(lambda: len(lines(shared, "+")) == 2)
        assert not reaper.alive(left)

    said = supervise(tmp_path, scenario)

    assert said[0] == f"parent ended (SIGKILL); restarting it in 0.5 s; its log: {tmp_path}/parent.log"


def test_a_process_that_will_not_end_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    deaf = SERVANT.replace('lambda *_: (write("-"), sys.exit(0))', "signal.SIG_IGN")
    stubborn = Child("stubborn", API, [sys.executable, "-c", deaf, "stubborn", str(shared)])
    patience = []

    async def scenario(keeping: Supervisor) -> None:
        keeping.keep([stubborn])
        await until(lambda: lines(shared, "+"))
        patience.append(time.monotonic())

    supervise(tmp_path, scenario)

    assert guard.PATIENCE[API] <= time.monotonic() - patience[0] < 10
    assert not psutil.pid_exists(int(lines(shared, "+")[0][1]))


def test_the_stages_together_keep_the_promise_of_ten_seconds() -> None:
    assert sum(guard.PATIENCE.values()) < 10


def test_a_second_signal_ends_everything_at_once(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    deaf = SERVANT.replace('lambda *_: (write("-"), sys.exit(0))', "signal.SIG_IGN")

    async def scenario(keeping: Supervisor) -> None:
        keeping.keep([Child("deaf", WORKERS, [sys.executable, "-c", deaf, "deaf", str(shared)])])
        await until(lambda: lines(shared, "+"))
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0)

    began = time.monotonic()
    supervise(tmp_path, scenario)
    assert time.monotonic() - began < guard.PATIENCE[WORKERS]


def test_nothing_outlives_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    script = tmp_path / "run.py"
    script.write_text(
        textwrap.dedent(f"""
        import asyncio, sys
        from pathlib import Path
        from app.supervisor.supervisor import Supervisor
        from tests.integration.test_supervisor import servant
        from app.supervisor.supervisor import API, WORKERS
        class Told(Supervisor):
            def _notify_guard(self, sign, pid):
                super()._notify_guard(sign, pid)
                print(sign, flush=True)
        async def start(keeping):
            shared = Path({str(shared)!r})
            keeping.keep([servant("worker", WORKERS, shared), servant("api", API, shared)])
        asyncio.run(Told(Path({str(tmp_path)!r}), print).run(start))
        """)
    )
    environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen([sys.executable, script], env=environment, stdout=subprocess.PIPE, text=True) as keeping:
        assert keeping.stdout is not None
        assert [keeping.stdout.readline() for _ in range(2)] == ["+\n", "+\n"], "the guard knows of both"
        asyncio.run(until(lambda: len(lines(shared, "+")) == 2))
        members = reaper.family(keeping.pid)
        keeping.kill()
    asyncio.run(until(lambda: not any(map(reaper.alive, members))))
    assert [name for name, _ in lines(shared, "-")] == ["api", "worker"]


def test_what_goes_wrong_at_the_start_ends_what_was_started(tmp_path: Path) -> None:
    shared = tmp_path / "shared"

    async def scenario(keeping: Supervisor) -> None:
        keeping.keep([servant("first", BROKER, shared)])
        await until(lambda: lines(shared, "+"))
        raise RuntimeError("the database is away")

    with pytest.raises(RuntimeError, match="the database is away"):
        supervise(tmp_path, scenario)
    assert [name for name, _ in lines(shared, "-")] == ["first"]


def test_warnings_are_shown_and_all_else_stays_in_the_log(tmp_path: Path) -> None:
    written = [
        "2026-11-21 02:56:48,133 [13577] INFO bucketwire.worker: nothing of note",
        "2026-11-21 02:56:48,133 [13577] WARNING bucketwire.worker: a target is away",
        "2026-11-21 02:58:58,133 [13577] ERROR gunicorn.error: a worker died",
        "    . logfile -> [stderr]@%WARNING",
    ]
    script = f"import time; print({chr(10).join(written)!r}, flush=True); time.sleep(60)"

    said: list[str] = []

    async def scenario(keeping: Supervisor) -> None:
        keeping.keep([Child("noisy", API, [sys.executable, "-c", script])])
        await until(lambda: len(said) >= 2)

    async def run() -> None:
        async def all_of_it(keeping: Supervisor) -> None:
            await scenario(keeping)
            os.kill(os.getpid(), signal.SIGINT)

        await Supervisor(tmp_path, said.append).run(all_of_it)

    asyncio.run(run())

    assert said[:2] == [f"noisy: {written[1]}", f"noisy: {written[2]}"]
    assert (tmp_path / "noisy.log").read_text().splitlines() == written


def test_a_warning_in_json_is_handed_on_with_the_name_of_its_process(tmp_path: Path) -> None:
    written = [logs.line("nothing of note"), logs.line("a target is away", "WARNING", target="arn")]
    script = f"import time; print({chr(10).join(written)!r}, flush=True); time.sleep(60)"
    repeated: list[tuple[str, str]] = []

    async def all_of_it(keeping: Supervisor) -> None:
        keeping.keep([Child("noisy", API, [sys.executable, "-c", script])])
        await until(lambda: repeated)
        os.kill(os.getpid(), signal.SIGINT)

    async def run() -> None:
        said: list[str] = []
        keeping = Supervisor(tmp_path, said.append, repeat=lambda name, line: repeated.append((name, line)))
        await keeping.run(all_of_it)

    asyncio.run(run())
    assert repeated == [("noisy", written[1])]


def test_a_log_is_moved_aside_before_it_fills_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_LARGEST_LOG", 100)
    path = tmp_path / "x.log"
    log = Log(path)
    with path.open("a") as writing:
        writing.write("a" * 150 + "\nhalf of a line")
        writing.flush()
        assert log.read_new_lines() == ["a" * 150]
        writing.write("later\n")
        writing.flush()
    assert log.read_new_lines() == ["later"]
    assert (tmp_path / "x.log.1").read_text().startswith("a" * 150)


def test_a_log_that_was_emptied_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    log = Log(path)
    path.write_text("a line of before\n")
    assert log.read_new_lines() == ["a line of before"]
    path.unlink()
    with pytest.raises(FileNotFoundError):
        log.read_new_lines()
    path.write_text("a later one\n")
    assert log.read_new_lines() == ["a later one"]


def test_what_was_read_is_returned_where_a_log_cannot_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_LARGEST_LOG", 100)
    path = tmp_path / "x.log"
    log = Log(path)
    (tmp_path / "x.log.1").mkdir()
    path.write_text("a" * 150 + "\n")
    assert log.read_new_lines() == ["a" * 150]


def test_a_log_that_cannot_be_followed_keeps_no_other_from_being_followed(tmp_path: Path) -> None:
    script = f"import time; print({logs.line('a target is away', 'WARNING')!r}, flush=True); time.sleep(60)"
    repeated: list[str] = []

    def repeat(name: str, _: str) -> None:
        if name == "first":
            raise BrokenPipeError
        repeated.append(name)

    async def all_of_it(keeping: Supervisor) -> None:
        keeping.keep([Child(name, API, [sys.executable, "-c", script]) for name in ("first", "second")])
        keeping.keep([Child("third", API, [sys.executable, "-c", script])])
        await until(lambda: len(repeated) == 2)
        os.kill(os.getpid(), signal.SIGINT)

    async def run() -> None:
        await Supervisor(tmp_path, [].append, repeat=repeat).run(all_of_it)

    asyncio.run(run())
    assert sorted(repeated[:2]) == ["second", "third"]


def test_waits_between_starts_grow_up_to_half_a_minute() -> None:
    assert [back_off(failures) for failures in (1, 2, 3, 7, 1000)] == [0.5, 1.0, 2.0, 30.0, 30.0]
