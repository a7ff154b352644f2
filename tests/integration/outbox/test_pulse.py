"""Signs of life of the queues, on each kind of database."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from app.config.arn import TargetId
from app.outbox import models as m
from app.outbox import pulse
from app.outbox.database import Database, now_ms
from tests.builders import add_target, migrated, registry

SECOND = 1000


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Database]:
    """An empty log on SQLite."""
    opened = migrated(f"sqlite:///{tmp_path}/outbox.db")
    yield opened
    opened.close()


def queue(database: Database, name: str = "x") -> pulse.Queue:
    with database.reading() as connection:
        return next(one for one in pulse.queues(connection) if one.target.name == name)


def test_a_queue_is_asked_every_fifteen_seconds_while_it_answers(database: Database) -> None:
    target = add_target(database)
    began = now_ms()
    for round_ in range(3):
        now = began + round_ * pulse.EVERY
        [asked] = pulse.ask(database, now)
        assert asked.target == target
        assert pulse.ask(database, now + 5 * SECOND) == []
        pulse.answered(database, asked.row_id, now + SECOND)
        assert queue(database).silent(now + 3 * SECOND) == 2 * SECOND


def test_a_queue_that_does_not_answer_is_asked_ever_more_rarely_and_at_once_again_when_it_does(log: Database) -> None:
    add_target(log)
    began = now_ms()
    looks = [*range(0, 1920, 15), *range(1920, 24 * 3600, 120)]
    asked = [at for at in looks if pulse.ask(log, began + at * SECOND)]
    gaps = [later - earlier for earlier, later in pairwise(asked)]
    assert gaps[:6] == [15, 15, 30, 60, 120, 240]
    assert set(gaps[10:]) == {3600}, "what waits for a worker stays a handful, also in a broker that forgets nothing"
    assert queue(log).silent(began + 24 * 3600 * SECOND) >= 24 * 3600 * SECOND - 1000
    back = began + 25 * 3600 * SECOND
    pulse.answered(log, queue(log).row_id, back)
    pulse.ask(log, back + pulse.EVERY)
    pulse.answered(log, queue(log).row_id, back + pulse.EVERY + SECOND)
    assert len(pulse.ask(log, back + 2 * pulse.EVERY)) == 1


def test_queues_are_those_of_enabled_targets_and_one_is_new_with_its_target(log: Database) -> None:
    add_target(log, "paused")
    add_target(log, "off")
    registry(log).pause(TargetId("webhook", "paused"), "a new disk")
    with log.writing() as connection:
        connection.execute(m.targets.update().where(m.targets.c.name == "off").values(enabled=False))
    now = now_ms()
    assert [one.target.name for one in pulse.ask(log, now)] == ["paused"]
    assert queue(log, "paused").silent(now) < 60 * SECOND


def test_the_questions_of_many_targets_come_less_often() -> None:
    one = pulse.Queue(TargetId("redis", "x"), 1, made=0, asked=100_000, answered=101_000, unanswered=0)
    assert one.due(115_000, pulse.EVERY)
    assert not one.due(115_000, 100_000)


def test_signs_of_targets_that_are_gone_are_forgotten(log: Database) -> None:
    target = add_target(log)
    pulse.note(log, pulse.DRAIN, 5)
    pulse.ask(log, now_ms())
    pulse.answered(log, queue(log).row_id, now_ms())
    registry(log).remove(target, force=True)
    pulse.ask(log, now_ms())
    with log.reading() as connection:
        assert pulse.drained(connection) == 5
        assert pulse.queues(connection) == []
        assert connection.execute(m.pulse.select()).all() == [("drain", 5)]
