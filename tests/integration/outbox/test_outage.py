"""A worker whose outbox database goes away and comes back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.config.arn import TargetId
from app.config.settings import Settings
from app.events.model import Event
from app.outbox import tables
from app.outbox.delivery.availability import open_breaker
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database, DatabaseUnavailable, now_ms
from app.outbox.engine.db_errors import outbox_state
from app.outbox.log.append import Log
from tests import services
from tests.support.builders import add_target, event, migrated
from tests.support.scripted_target import ScriptedTarget
from workers.delivery.namespace_policy import Policy
from workers.delivery.outcomes import Outcome, Unavailable
from workers.delivery.pooled_target import BatchSizer, PooledTarget
from workers.delivery.retry import RetrySchedule
from workers.runtime import Runtime


@pytest.fixture
def server() -> Iterator[services.Postgres]:
    with services.postgres() as running:
        yield running


@pytest.fixture
def context(server: services.Postgres, tmp_path: Path) -> Iterator[Runtime]:
    settings = {"BUCKETWIRE_DATA_DIR": str(tmp_path), "BUCKETWIRE_DATABASE_URL": server.create_database("outbox")}
    opened = Runtime(Settings.from_environ(settings))
    migrated(settings["BUCKETWIRE_DATABASE_URL"]).close()
    yield opened
    opened.close()


def list_target(context: Runtime, redis_server: services.Redis, key: str) -> TargetId:
    address = f"{services.LOOPBACK}:{redis_server.port}"
    return add_target(context.database, key, type_name="redis", address=address, key=key, format="access")


def test_the_first_wakeup_after_a_restart_of_the_database_is_not_wasted(
    context: Runtime, server: services.Postgres, redis_server: services.Redis
) -> None:
    target = list_target(context, redis_server, "restart")
    for number in range(3):
        Log(context.database).append([[event()]])
        assert context.deliverer.deliver(target) == "delivered=1", f"round {number}"
        Log(context.database).append([[event()]])
        server.kill()
        server.start()
        assert context.deliverer.deliver(target) == "delivered=1", f"after restart {number}"


def test_an_outage_is_told_once_and_so_is_its_end(
    context: Runtime,
    server: services.Postgres,
    redis_server: services.Redis,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox_state, "_is_watching", True)
    target = list_target(context, redis_server, "outage")
    assert context.deliverer.deliver(target) == "opened"
    caplog.set_level(logging.INFO, "bucketwire.outbox")
    caplog.clear()
    assert context.drain.run(lambda _: None) == 0
    beside = Database(context.settings.database_url)  # as a process has several
    with beside.reading() as connection:
        database_now(connection)
    server.stop()
    for _ in range(3):
        assert context.drain.run(lambda _: None) == 0
        assert context.deliverer.deliver(target) == "the outbox database is unavailable"
    [told] = caplog.messages
    assert told.startswith("the outbox database is unavailable: ")
    assert services.PASSWORD not in told
    server.start()
    assert context.deliverer.deliver(target) == "nothing due"
    assert caplog.messages[1:] == ["the outbox database is available again"]
    assert context.drain.run(lambda _: None) == 0
    with pytest.raises(DatabaseUnavailable), beside.reading() as connection:
        database_now(connection)  # its connection broke in the same outage
    with beside.reading() as connection:
        database_now(connection)
    beside.close()
    assert len(caplog.messages) == 2


def test_a_target_that_is_away_is_told_ever_more_rarely(context: Runtime, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "bucketwire.worker")
    target = add_target(context.database, "away", type_name="redis", address="127.0.0.1:9", key="away")
    Log(context.database).append([[event()]])
    for _ in range(9):
        with context.database.committing() as connection:
            connection.execute(tables.targets.update().values(resume_at=0))
        context.deliverer.deliver(target)
    assert [failures for failures, _ in told(caplog)] == [1, 2, 4, 8]


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    """What the worker has logged of targets: which failure in a row it is, and the reason."""
    members = [record.__dict__ for record in caplog.records if record.name == "bucketwire.worker"]
    return [(each["failures"], each["reason"]) for each in members if "failures" in each]  # else it is of the broker


def serve(context: Runtime, monkeypatch: pytest.MonkeyPatch, script: Callable[[Event], Outcome]) -> TargetId:
    """A target with an event, which answers as the script says."""
    target = add_target(context.database, "scripted")
    Log(context.database).append([[event()]])
    schedule, sizes = RetrySchedule(base=1, cap=1), BatchSizer(1, 1)
    scripted = PooledTarget("arn:test", ScriptedTarget(script), Policy.LOG, schedule, 1, sizes)
    monkeypatch.setattr(context.pool, "target", lambda _: scripted)
    return target


def test_a_pause_is_told_whatever_failure_in_a_row_it_is(
    context: Runtime, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING, "bucketwire.worker")
    away = Unavailable("away", unreachable=True)
    answers = iter([away, away, replace(away, reason="gone", pause=True)])
    target = serve(context, monkeypatch, lambda _: next(answers))
    for _ in range(3):
        with context.database.committing() as connection:
            connection.execute(tables.targets.update().values(resume_at=0))
        context.deliverer.deliver(target)
    assert context.registry.target(target).paused
    assert told(caplog) == [(1, "away"), (2, "away"), (3, "gone")]


def test_of_partitions_that_fail_together_one_is_told(
    context: Runtime, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING, "bucketwire.worker")

    def fails_elsewhere_too(_: Event) -> Outcome:
        row_id = context.registry.target(target).row_id
        open_breaker(context.database, row_id, "away", now_ms() + 60_000, probing=False)
        return Unavailable("away", unreachable=True)

    target = serve(context, monkeypatch, fails_elsewhere_too)
    context.deliverer.deliver(target)
    assert context.registry.target(target).state == "unavailable"
    assert told(caplog) == [], "the other worker tells it"
