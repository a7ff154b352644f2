"""Signs of life of the queues, on each kind of database."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from app.config.arn import TargetId
from app.config.settings import Settings
from app.outbox import tables
from app.outbox.delivery import heartbeats
from app.outbox.delivery.future_times import bring_back_future_times
from app.outbox.delivery.heartbeats import Worker
from app.outbox.engine.database import Database, now_ms
from app.outbox.policies import HEARTBEATS
from app.release import VERSION
from tests.support import databases
from tests.support.builders import add_target, migrated, registry
from workers.heartbeat import WorkerHeartbeat
from workers.runtime import Runtime

pytestmark = databases.TWO

SECOND = 1000


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Database]:
    """An empty log on SQLite."""
    opened = migrated(f"sqlite:///{tmp_path}/outbox.db")
    yield opened
    opened.close()


def queue(database: Database, name: str = "x") -> heartbeats.Queue:
    with database.reading() as connection:
        return next(one for one in heartbeats.queues(connection) if one.target.name == name)


def test_a_queue_is_asked_every_fifteen_seconds_while_it_answers(database: Database) -> None:
    target = add_target(database)
    began = now_ms()
    for round_ in range(3):
        now = began + round_ * HEARTBEATS.interval_ms
        [asked] = heartbeats.queues_to_probe(database, now)
        assert asked.target == target
        assert heartbeats.queues_to_probe(database, now + 5 * SECOND) == []
        heartbeats.answered(database, [asked.row_id], now + SECOND)
        assert queue(database).heartbeat_age(now + 3 * SECOND) == 2 * SECOND


def test_a_queue_that_does_not_answer_is_asked_ever_more_rarely_and_at_once_again_when_it_does(log: Database) -> None:
    add_target(log)
    began = now_ms()
    looks = [*range(0, 1920, 15), *range(1920, 24 * 3600, 120)]
    asked = [at for at in looks if heartbeats.queues_to_probe(log, began + at * SECOND)]
    gaps = [later - earlier for earlier, later in pairwise(asked)]
    assert gaps[:6] == [15, 15, 30, 60, 120, 240]
    assert set(gaps[10:]) == {3600}, "what waits for a worker stays a handful, also in a broker that forgets nothing"
    assert queue(log).heartbeat_age(began + 24 * 3600 * SECOND) >= 24 * 3600 * SECOND - 1000
    back = began + 25 * 3600 * SECOND
    heartbeats.answered(log, [queue(log).row_id], back)
    heartbeats.queues_to_probe(log, back + HEARTBEATS.interval_ms)
    heartbeats.answered(log, [queue(log).row_id], back + HEARTBEATS.interval_ms + SECOND)
    assert len(heartbeats.queues_to_probe(log, back + 2 * HEARTBEATS.interval_ms)) == 1


def test_queues_are_those_of_enabled_targets_and_one_is_new_with_its_target(log: Database) -> None:
    add_target(log, "paused")
    add_target(log, "off")
    registry(log).pause(TargetId("webhook", "paused"), "a new disk")
    with log.writing() as connection:
        connection.execute(tables.targets.update().where(tables.targets.c.name == "off").values(enabled=False))
    now = now_ms()
    assert [one.target.name for one in heartbeats.queues_to_probe(log, now)] == ["paused"]
    assert queue(log, "paused").heartbeat_age(now) < 60 * SECOND


def test_the_questions_of_many_targets_come_less_often() -> None:
    one = heartbeats.Queue(TargetId("redis", "x"), 1, made=0, asked=100_000, answered=101_000, unanswered=0)
    assert one.due(115_000, HEARTBEATS.interval_ms)
    assert not one.due(115_000, 100_000)


def test_of_queues_that_one_worker_serves_one_is_asked_for_all(database: Database) -> None:
    ids = {registry(database).target(add_target(database, f"t{number}")).row_id for number in range(5)}
    mine, others = set(sorted(ids)[:3]), set(sorted(ids)[3:])
    now = now_ms()
    assert {one.row_id for one in heartbeats.queues_to_probe(database, now)} == ids, "nobody knows yet who serves them"
    for round_ in range(1, 4):
        heartbeats.answered(database, mine, now + 1)
        heartbeats.answered(database, others, now + 2)
        now += HEARTBEATS.interval_ms + SECOND
        asked = [one.row_id for one in heartbeats.queues_to_probe(database, now)]
        assert len(asked) == 2, round_
        assert len(mine & set(asked)) == len(others & set(asked)) == 1
    gone = set[int]()
    for _ in range(10):  # nobody answers any more: all of them are asked in the end
        now += HEARTBEATS.interval_ms
        gone |= {one.row_id for one in heartbeats.queues_to_probe(database, now)}
    assert gone == ids
    assert queue(database, "t0").heartbeat_age(now) > 10 * HEARTBEATS.interval_ms


@databases.THREE
def test_a_worker_answers_for_what_it_serves(
    database: Database, outbox_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, other, kafka = (
        registry(database).target(target).row_id
        for target in (
            add_target(database, "a"),
            add_target(database, "b"),
            add_target(database, "c", type_name="redis", values={"address": "127.0.0.1:9", "key": "k"}),
        )
    )
    monkeypatch.setenv("BUCKETWIRE_WORKER_TARGETS", "redis,webhook:a")
    heartbeats.queues_to_probe(database, now_ms() - SECOND)
    settings = {"BUCKETWIRE_DATABASE_URL": outbox_url, "BUCKETWIRE_DATA_DIR": str(tmp_path)}
    with contextlib.closing(Runtime(Settings.from_environ(settings))) as runtime:
        runtime.drain.queue_alive(served, lambda _: {TargetId("redis", "c")})
        assert alive(database) == {served}, "nobody can serve a queue that the broker refuses"
        heartbeats.queues_to_probe(database, now_ms() + HEARTBEATS.interval_ms)
        runtime.drain.queue_alive(served)
        heartbeats.answered(database, [kafka], now_ms() + 2 * HEARTBEATS.interval_ms)
        monkeypatch.setattr(heartbeats, "queues", lambda _: pytest.fail("one of a thousand probes reads all queues"))
        runtime.drain.queue_alive(kafka)
    monkeypatch.undo()
    assert alive(database) == {served, kafka}
    assert other not in alive(database)


def alive(database: Database) -> set[int]:
    with database.reading() as connection:
        return {one.row_id for one in heartbeats.queues(connection) if one.answered}


def test_signs_of_targets_that_are_gone_are_forgotten(log: Database) -> None:
    target = add_target(log)
    heartbeats.record(log, heartbeats.DRAIN, 5)
    heartbeats.queues_to_probe(log, now_ms())
    heartbeats.answered(log, [queue(log).row_id], now_ms())
    registry(log).remove(target, force=True)
    heartbeats.queues_to_probe(log, now_ms())
    with log.reading() as connection:
        assert heartbeats.last_drain(connection) == 5
        assert heartbeats.queues(connection) == []
        assert connection.execute(tables.heartbeats.select()).all() == [("drain", 5)]


def worker(database: Database, name: str = "here:7:x", **values: Any) -> Worker:
    return heartbeats.record_worker(database, Worker(name, "w@here", "1", "prefork", ["targets"], **values))


def listed(database: Database) -> dict[str, Worker]:
    with database.reading() as connection:
        return {one.id: one for one in heartbeats.read_workers(connection)}


@databases.THREE
def test_a_worker_is_listed_until_it_ends_or_was_silent_for_an_hour(database: Database) -> None:
    heartbeats.record_worker(database, Worker("a:1:x", "x@last", "1", "prefork", ["targets"]))
    worker(database, "there:9:x")
    worker(database, "here:8:x")
    first = worker(database)
    assert list(listed(database)) == ["here:7:x", "here:8:x", "there:9:x", "a:1:x"], "by name and id"
    heartbeats.remove_worker(database, "a:1:x")
    again = heartbeats.record_worker(database, replace(first, processes=[1, 2], jobs=["tables"]))
    assert listed(database)["here:7:x"] == again
    assert again.started_at == first.started_at <= again.at
    heartbeats.remove_worker(database, "here:8:x")
    kept = HEARTBEATS.worker_kept_ms
    with database.writing() as connection:
        at = tables.workers.update().where(tables.workers.c.id == "there:9:x")
        connection.execute(at.values(at=again.at - kept - 1))
    heartbeats.forget_silent_workers(database, again.at)
    assert listed(database).keys() == {"here:7:x"}
    assert again.is_alive(again.at + HEARTBEATS.worker_silence_ms)
    assert not again.is_alive(again.at + HEARTBEATS.worker_silence_ms + 1)
    heartbeats.forget_silent_workers(database, again.at + kept + 1)
    assert listed(database) == {}
    heartbeats.record_worker(database, again)  # it had only been stopped
    assert listed(database).keys() == {"here:7:x"}


@databases.THREE
def test_a_heartbeat_of_a_clock_that_was_ahead_is_brought_back(database: Database) -> None:
    worker(database)
    with database.writing() as connection:
        connection.execute(tables.workers.update().values(at=now_ms() + 365 * 24 * 3600 * SECOND))
    now = now_ms()
    assert bring_back_future_times(database, 60_000, now) == 1
    assert listed(database)["here:7:x"].at == now


def test_a_worker_says_what_it_serves_and_a_database_that_is_away_stops_nothing(
    log: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at(url: str) -> Settings:
        return Settings.from_environ({"BUCKETWIRE_DATA_DIR": str(tmp_path), "BUCKETWIRE_DATABASE_URL": url})

    settings = at(str(log.url))
    monkeypatch.setenv("BUCKETWIRE_WORKER_TARGETS", "webhook:a,redis")
    heartbeat = WorkerHeartbeat(settings, "w@here", "solo", ["drain"])
    heartbeat.record([5], ["tables"])
    [only] = listed(log).values()
    assert (only.pid, only.version, only.serves) == (os.getpid(), VERSION, ["drain", "redis", "webhook:a"])
    assert (only.processes, only.jobs) == ([5], ["tables"])
    heartbeat.end()
    assert listed(log) == {}
    empty = f"sqlite:///{tmp_path}/empty.db"  # where `migrate` has not run yet
    for url in ("postgresql://a:b@127.0.0.1:9/c", empty):
        heartbeat = WorkerHeartbeat(at(url), "w@here", "solo", [])
        heartbeat.record([], [])
        heartbeat.end()
    heartbeat = WorkerHeartbeat(settings, "w" * 1_000, "solo", [])
    heartbeat.record([], [])
    assert [only.name for only in listed(log).values()] == ["w" * 255]
    heartbeat.end()
