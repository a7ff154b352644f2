"""The processes of scheduled reconciliations: they end when asked to, and with who started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from app.outbox.schedule import Waiting
from tests.builders import add_target, migrated
from tests.services import reaper, until
from workers import nightly
from workers.nightly import Hints, Jobs, last_words

# As a job is: Ctrl-C ends it, SIGTERM is as that, and so is the end of its input.
ENDING = "from spark_jobs import ending; ending.by_sigterm(); ending.with_input(); import time; "


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_what_a_job_came_to_is_its_last_line_or_its_problem() -> None:
    jobs = Jobs()
    done = jobs.run(python("print('listing'); print('drift: 3 differences')"))
    assert (done.code, done.said) == (0, "drift: 3 differences")
    failed = jobs.run(python("import sys; sys.exit('bucketwire: no such bucket\\n\\tat java.lang.Thread')"))
    assert (failed.code, failed.said) == (1, "no such bucket")
    assert last_words("", 137) == "it ended with 137 and said nothing"


def test_a_job_that_is_asked_to_end_does_and_what_would_begin_then_does_not(tmp_path: Path) -> None:
    jobs, begun = Jobs(), tmp_path / "begun"
    code = f"{ENDING}import pathlib; pathlib.Path({str(begun)!r}).touch(); time.sleep(300)"
    with ThreadPoolExecutor() as pool:
        running = pool.submit(jobs.run, python(code))
        until(begun.exists, 60)
        jobs.stop()
        assert running.result(60).said == "it was stopped before its end"
    assert jobs.run(python(code)).code != 0


def test_a_job_ends_when_the_worker_that_started_it_is_killed(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    code = f"{ENDING}import os, pathlib; pathlib.Path({str(begun)!r}).write_text(str(os.getpid())); time.sleep(300)"
    worker = subprocess.Popen(python(f"from workers.nightly import Jobs; Jobs().run({python(code)!r})"))
    try:
        until(lambda: begun.exists() and begun.read_text(), 60)
        job = psutil.Process(int(begun.read_text()))
    finally:
        worker.kill()
        worker.wait()
    try:
        until(lambda: not reaper.alive(job), 60, what="the end of the job")
    finally:
        reaper.end([job])


def test_a_job_that_ignores_the_interrupt_is_gone_all_the_same(tmp_path: Path) -> None:
    code = f"{ENDING}ending._PATIENCE = 0.1\nimport signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    job = subprocess.Popen(python(code + "print(flush=True); time.sleep(300)"), stdin=subprocess.PIPE, stdout=-1)
    assert job.stdout is not None
    assert job.stdin is not None
    try:
        job.stdout.readline()
        os.kill(job.pid, signal.SIGTERM)
        assert job.wait(60) == 130
    finally:
        job.kill()
        job.wait()
        job.stdout.close()
        job.stdin.close()


def test_what_waits_is_hinted_at_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database, told, hints = migrated(f"sqlite:///{tmp_path}/outbox.db"), list[Waiting](), Hints()
    schedule = {"reconcile": "* * * * *", "address": "127.0.0.1:9", "key": "rows"}
    add_target(database, "x", type_name="redis", values=schedule, bucket="b")
    assert [hints.look(database, told.append) for _ in range(3)] == [1, 0, 0]
    assert [(str(each.target), each.bucket) for each in told] == [("redis:x", "b")]
    monkeypatch.setattr(nightly, "AGAIN", 0)
    assert hints.look(database, told.append) == 1
    assert told[0] == told[1]
    database.close()
