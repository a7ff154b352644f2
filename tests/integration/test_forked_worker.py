"""A worker's pool is forked: what its parent has open is nothing to a child."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from billiard import process
from billiard.process import BaseProcess as BilliardProcess
from celery.concurrency.prefork import process_initializer

from app.config.settings import Settings
from tests import services
from tests.support.builders import add_target, migrated, registry
from tests.support.forking import in_a_child
from workers import runtime
from workers.celery import app
from workers.sources import role


def test_a_process_whose_worker_was_killed_before_it_began_ends(tmp_path: Path) -> None:
    """As Celery starts it: the kernel is asked to kill it with its parent, but the parent is gone by then."""
    reading, writing = os.pipe()
    worker = os.fork()
    if not worker:
        begun = BilliardProcess()  # whose parent is the worker
        parent = os.getpid()
        if os.fork():
            os._exit(0)
        while os.getppid() == parent:
            time.sleep(0.001)
        process._set_current_process(begun)
        os.write(writing, b"begins ")
        process_initializer(app, "host")
        os.write(writing, b"and goes on")
        os._exit(0)
    os.close(writing)
    os.waitpid(worker, 0)
    with os.fdopen(reading, "rb") as said:
        assert said.read() == b"begins "


def test_a_workers_child_makes_its_context_anew_with_no_target_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, redis_server: services.Redis
) -> None:
    monkeypatch.setenv("BUCKETWIRE_DATA_DIR", str(tmp_path / "var"))
    url = Settings.from_environ(os.environ).database_url
    (tmp_path / "var").mkdir()
    database = migrated(url)
    place = f"{services.LOOPBACK}:{redis_server.port}"
    target = add_target(database, "forked", type_name="redis", values={"address": place, "key": "forked"})
    stored = registry(database).target(target)
    database.close()
    parents = runtime.current()
    parents.pool.target(stored).adapter.open()
    report = tmp_path / "said"

    def work() -> None:
        own = runtime.current()
        assert own is not parents
        assert own.pool.target(stored).adapter is not parents.pool.target(stored).adapter
        assert own.database is not parents.database
        report.write_text("anew")

    try:
        assert in_a_child(work, report) == "anew"
        assert runtime.current() is parents
    finally:
        runtime.forget()


@pytest.mark.filterwarnings("ignore::celery.platforms.SecurityWarning")
def test_sources_are_pulled_before_the_broker_answers_and_after_celery_has_changed_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process whose environment is changed while a thread connects to a database may crash."""
    named_by_celery = ("CELERY_LOG_LEVEL", "CELERY_LOG_REDIRECT", "_MP_FORK_LOGLEVEL_")
    report = tmp_path / "said"

    def start(_settings: Settings) -> None:
        report.write_text(" ".join(name for name in named_by_celery if name in os.environ))
        os._exit(0)

    monkeypatch.setattr(role, "start", start)
    monkeypatch.setattr(app.conf, "broker_read_url", "redis://127.0.0.1:1")

    def work() -> None:
        for name in named_by_celery:
            os.environ.pop(name, None)
        app.Worker(pool="solo", loglevel="INFO", quiet=True).start()

    assert in_a_child(work, report).split() == list(named_by_celery)
