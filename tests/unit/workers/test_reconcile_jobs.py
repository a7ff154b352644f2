"""The processes of scheduled reconciliations: they end when they are stopped, and with the worker that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import orjson
import psutil
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from app import telemetry
from app.cli import bucketwire
from app.cli.commands import processes
from app.config.arn import TargetId
from app.outbox import tables
from app.outbox.engine.database import now_ms
from app.outbox.log.append import Log
from app.outbox.reconcile.runs import Reconciliations
from app.outbox.reconcile.schedule import Schedule, WaitingRun
from app.telemetry.otlp.records import OtelTracing
from spark_jobs.__main__ import jobs as spark_commands
from tests.services import reaper, until
from tests.support.builders import add_target, event, migrated
from tests.support.hostile_names import BUCKETS, scheduled
from workers import scheduled_jobs
from workers.scheduled_jobs import JobProcesses, JobResult, RunWakeUps, last_message

# Like a job: Ctrl-C, SIGTERM and the end of its input stop it.
ENDING = "from spark_jobs import runs; runs.end_on_sigterm(); runs.end_with_input(); import time; "


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_the_result_of_a_job_is_its_last_line_or_its_error() -> None:
    jobs = JobProcesses()
    done = jobs.run(python("print('listing'); print('drift: 3 differences')"))
    assert (done.code, done.message) == (0, "drift: 3 differences")
    failed = jobs.run(python("import sys; sys.exit('bucketwire: no such bucket\\n\\tat java.lang.Thread')"))
    assert (failed.code, failed.message) == (1, "no such bucket")
    assert last_message("", 137) == "the job exited with code 137 and printed nothing"


def test_stop_ends_running_jobs_and_those_that_start_later(tmp_path: Path) -> None:
    jobs, begun = JobProcesses(), tmp_path / "begun"
    code = f"{ENDING}import pathlib; pathlib.Path({str(begun)!r}).touch(); time.sleep(300)"
    with ThreadPoolExecutor() as pool:
        running = pool.submit(jobs.run, python(code), "tables")
        until(begun.exists, 60)
        assert jobs.names == ["tables"]
        jobs.stop()
        assert running.result(60).message == "the run was stopped before it finished"
    assert jobs.names == []
    assert jobs.run(python(code)).code != 0


def test_a_job_ends_when_the_worker_that_started_it_is_killed(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    code = f"{ENDING}import os, pathlib; pathlib.Path({str(begun)!r}).write_text(str(os.getpid())); time.sleep(300)"
    worker = subprocess.Popen(
        python(f"from workers.scheduled_jobs import JobProcesses; JobProcesses().run({python(code)!r})")
    )
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
    code = f"{ENDING}runs._EXIT_TIMEOUT = 0.1\nimport signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    # Many short sleeps: a signal that comes just before a sleep begins is handled only when that sleep has ended.
    code += "print(flush=True)\nwhile True: time.sleep(0.1)"
    job = subprocess.Popen(python(code), stdin=subprocess.PIPE, stdout=-1)
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


def test_the_wake_up_of_a_waiting_run_is_repeated_at_intervals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database, published, wake_ups = migrated(f"sqlite:///{tmp_path}/outbox.db"), list[WaitingRun](), RunWakeUps()
    schedule = {"reconcile": "* * * * *", "address": "127.0.0.1:9", "key": "rows"}
    add_target(database, "x", type_name="redis", values=schedule, bucket="bucket")
    assert [wake_ups.publish_due(database, published.append) for _ in range(3)] == [1, 0, 0]
    assert [(str(each.target), each.bucket) for each in published] == [("redis:x", "bucket")]
    monkeypatch.setattr(scheduled_jobs, "REPEAT_INTERVAL_SECONDS", 0)
    assert wake_ups.publish_due(database, published.append) == 1
    assert published[0] == published[1]
    database.close()


def job_context(words: list[str]) -> click.Context:
    """Parse the arguments of a job's process."""
    command: click.Command = spark_commands
    while isinstance(command, click.Group):
        name, *words = words
        command = command.commands[name]
    return command.make_context(name, words)


def test_no_bucket_name_is_parsed_as_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[list[str]]()
    monkeypatch.setattr(processes, "exec_process", seen.append)
    for name in (*BUCKETS, "images"):
        arguments = scheduled_jobs.run_arguments(WaitingRun("r" * 32, TargetId("redis", "x"), name, 1, first=False))
        bucketwire.main(args=arguments, standalone_mode=False)
        [_, *words] = seen[-1]  # the arguments of the job's process
        context = job_context(words)
        assert context.params["bucket"] == name
        assert (context.params["repair"], context.params["scheduled"]) == (False, "r" * 32)
        scan = WaitingRun("r" * 32, TargetId("redis", "x"), name, 1, first=False, job="scan")
        bucketwire.main(args=scheduled_jobs.run_arguments(scan), standalone_mode=False)
        [_, *words] = seen[-1]
        context = job_context(words)
        assert (words[0], context.params["bucket"], context.params["scheduled"]) == ("scan", name, "r" * 32)
    bucketwire.main(args=["reconcile", "run", "--help"], standalone_mode=False)
    assert seen[-1][-1] == "--help", "the job prints its own help"


@pytest.mark.nightly("two names: whether a name is valid is a unit", when=lambda name: name not in {"nul\0", "..", ""})
@pytest.mark.slow
@pytest.mark.parametrize("name", [*(name for name in BUCKETS if not scheduled(name)), "nul\0"])
def test_a_run_with_an_invalid_bucket_name_fails(tmp_path: Path, name: str) -> None:
    database = migrated(f"sqlite:///{tmp_path}/outbox.db")
    schedule = {"reconcile": "* * * * *", "address": "127.0.0.1:9", "key": "rows"}
    target = add_target(database, "x", type_name="redis", values=schedule, bucket="images")
    Schedule(database).register(now_ms())
    with database.writing() as connection:  # as if registered before names were validated
        connection.execute(tables.reconciliations.update().values(bucket=name))
    assert scheduled_jobs.reconcile(database, target, name, "arn") == "the bucket's name is invalid"
    [run] = Reconciliations(database).list()
    assert (run.state, Schedule(database).waiting()) == ("failed", [])
    database.close()


@pytest.mark.parametrize("result", [JobResult(0, "no drift"), JobResult(1, "the bucket does not answer")])
def test_a_reconciliation_is_a_span_that_fails_with_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: JobResult
) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(telemetry, "_tracing", OtelTracing(provider.get_tracer("x"), None))
    monkeypatch.setattr(scheduled_jobs.jobs, "run", lambda *_: result)
    database = migrated(f"sqlite:///{tmp_path}/outbox.db")
    schedule = {"reconcile": "* * * * *", "address": "127.0.0.1:9", "key": "rows"}
    target = add_target(database, "x", type_name="redis", values=schedule, bucket="images")
    Schedule(database).register(now_ms())
    [waiting] = Schedule(database).waiting()
    assert scheduled_jobs.reconcile(database, target, "images", "the:arn") == result.message
    [span] = exporter.get_finished_spans()
    assert (span.name, span.status.is_ok) == ("reconcile", result.code == 0)
    assert dict(span.attributes or {}) == {
        "bucketwire.target": "the:arn", "aws.s3.bucket": "images", "bucketwire.run": waiting.run,
        "bucketwire.exit_code": result.code,
    } | ({"error.type": "failed"} if result.code else {})  # fmt: skip
    assert span.status.description == (result.message if result.code else None)
    database.close()


def test_buckets_that_are_not_scheduled_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    database = migrated(f"sqlite:///{tmp_path}/outbox.db")
    schedule = {"reconcile": "* * * * *", "address": "127.0.0.1:9", "key": "rows"}
    add_target(database, "x", type_name="redis", values=schedule)
    Log(database).append([[event(bucket="images"), event(bucket="x' OR '1'='1")]])
    assert RunWakeUps().publish_due(database, lambda _: None) == 1
    assert "redis:x: 1 of the buckets in its events are not reconciled or scanned by schedule" in caplog.text
    database.close()


BEAT = """
from datetime import UTC, datetime
import json
from workers.celery import SPARK_QUEUE, Scheduler, app
entry = app.conf.beat_schedule["update_tables"]
schedule = entry["schedule"]
schedule.nowfun = lambda: datetime(2026, 11, 21, 3, 10, 30, tzinfo=UTC)
due = [schedule.is_due(datetime(2026, 11, 21, 3, minute, second, tzinfo=UTC)).is_due
       for minute, second in ((9, 59), (10, 0), (10, 29))]
class Waits:
    def _waiting(self, name):
        return {SPARK_QUEUE: waiting}.get(name, 0)
rooms = []
for waiting in (0, 1):
    rooms.append([Scheduler._has_room(Waits(), task) for task in ("update_tables", "purge")])
print(json.dumps([entry["task"], entry["options"], due, rooms]))
"""


def test_beat_sends_the_update_of_the_tables_when_it_is_due_and_none_waits(tmp_path: Path) -> None:
    environment = {"BUCKETWIRE_TABLES_SCHEDULE": "*/5 * * * *", "BUCKETWIRE_DATA_DIR": str(tmp_path)}
    done = subprocess.run(python(BEAT), env=os.environ | environment, capture_output=True, text=True, check=True)
    task, options, due, rooms = orjson.loads(done.stdout)
    assert (task, options) == ("update_tables", {"queue": "spark"})
    assert due == [True, False, False]
    assert rooms == [[True, True], [False, True]]


def test_an_update_of_the_tables_is_a_job_and_its_last_line_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], name: str) -> JobResult:
        assert name == "tables"
        commands.append(command)
        return JobResult(0, "3 events added")

    monkeypatch.setattr(scheduled_jobs.jobs, "run", run)
    assert scheduled_jobs.update_tables() == "3 events added"
    assert commands == [[sys.executable, "-P", "-m", "bucketwire.start", "spark_jobs", "tables", "--scheduled"]]
