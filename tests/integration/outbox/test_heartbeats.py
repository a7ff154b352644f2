"""Signs of life of the queues, on each kind of database."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from app.config.arn import TargetId
from app.outbox import tables
from app.outbox.delivery import heartbeats
from app.outbox.engine.database import Database, now_ms
from tests.support.builders import add_target, migrated, registry

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
        now = began + round_ * heartbeats.EVERY
        [asked] = heartbeats.queues_to_probe(database, now)
        assert asked.target == target
        assert heartbeats.queues_to_probe(database, now + 5 * SECOND) == []
        heartbeats.answered(database, asked.row_id, now + SECOND)
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
    heartbeats.answered(log, queue(log).row_id, back)
    heartbeats.queues_to_probe(log, back + heartbeats.EVERY)
    heartbeats.answered(log, queue(log).row_id, back + heartbeats.EVERY + SECOND)
    assert len(heartbeats.queues_to_probe(log, back + 2 * heartbeats.EVERY)) == 1


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
    assert one.due(115_000, heartbeats.EVERY)
    assert not one.due(115_000, 100_000)


def test_signs_of_targets_that_are_gone_are_forgotten(log: Database) -> None:
    target = add_target(log)
    heartbeats.record(log, heartbeats.DRAIN, 5)
    heartbeats.queues_to_probe(log, now_ms())
    heartbeats.answered(log, queue(log).row_id, now_ms())
    registry(log).remove(target, force=True)
    heartbeats.queues_to_probe(log, now_ms())
    with log.reading() as connection:
        assert heartbeats.last_drain(connection) == 5
        assert heartbeats.queues(connection) == []
        assert connection.execute(tables.heartbeats.select()).all() == [("drain", 5)]
