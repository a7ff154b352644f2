"""Runs that come due are registered once and wait until one takes them, on each database."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from app.config.arn import TargetId
from app.outbox.append import Log
from app.outbox.database import Database, now_ms
from app.outbox.reconciliations import AlreadyRunning, Reconciliations
from app.outbox.schedule import LATE, Schedule
from tests.builders import add_target, event, registry

EACH_MINUTE = {"reconcile": "* * * * *", "address": "127.0.0.1:9", "key": "rows"}
MINUTE = 60_000


def waiting(database: Database) -> set[tuple[str, str, bool]]:
    return {(str(each.target), each.bucket, each.first) for each in Schedule(database).waiting()}


def test_what_is_due_is_registered_once_for_each_target_and_bucket(database: Database) -> None:
    add_target(database, "all", type_name="redis", values=EACH_MINUTE)
    add_target(database, "one", type_name="redis", values=EACH_MINUTE, bucket="quiet")
    off = add_target(database, "off", type_name="redis", values=EACH_MINUTE | {"enable": "off"})
    add_target(database, "unscheduled", type_name="redis", values={"address": "127.0.0.1:9", "key": "rows"})
    assert Schedule(database).register(now_ms()) == 2  # it knows of one bucket yet, which a rule names
    Log(database).append([[event(bucket="busy")]])
    now = now_ms()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: Schedule(database).register(now), range(4)))
    assert sum(found) == 1
    assert waiting(database) == {
        ("redis:all", "quiet", True), ("redis:all", "busy", True), ("redis:one", "quiet", True),
    }  # fmt: skip
    assert off not in {each.target for each in Schedule(database).waiting()}
    assert Schedule(database).register(now + 2 * MINUTE) == 0  # they wait, however many moments pass


def test_a_run_that_waits_is_begun_once_and_the_next_moment_makes_another(database: Database) -> None:
    target = add_target(database, "x", type_name="redis", values=EACH_MINUTE, bucket="b")
    schedule, runs = Schedule(database), Reconciliations(database)
    by_hand = runs.begin(target, "b", lease=MINUTE)
    assert schedule.register(now_ms()) == 0  # it is at work already
    runs.end(by_hand, "clean", {})
    later = now_ms() + MINUTE
    assert schedule.register(later) == 1
    [found] = schedule.waiting()
    assert (found.target, found.bucket, found.since, found.first) == (target, "b", later, False)

    by_hand = runs.begin(target, "b", lease=MINUTE)  # somebody comes before it: it goes on waiting
    with pytest.raises(AlreadyRunning, match="redis:x is being reconciled with b"):
        runs.begin(target, "b", lease=MINUTE, run=found.run)
    runs.end(by_hand, "clean", {})
    assert runs.begin(target, "b", lease=MINUTE, run=found.run) == found.run
    assert schedule.waiting() == []
    with pytest.raises(AlreadyRunning):
        runs.begin(target, "b", lease=MINUTE, run=found.run)
    runs.end(found.run, "drift", {"missing": 1})
    with pytest.raises(AlreadyRunning, match="has been begun before"):
        runs.begin(target, "b", lease=MINUTE, run=found.run)
    assert [(each.run, each.state) for each in runs.list()][1] == (found.run, "drift")
    assert schedule.register(later) == 0
    assert schedule.register(later + MINUTE) == 1

    [found] = schedule.waiting()
    assert schedule.give_up(found.run, "no Java " + "x" * 3000, now_ms())
    assert not schedule.give_up(found.run, "again", now_ms())
    last = runs.list()[0]
    assert (last.run, last.state, last.problem[:8], schedule.waiting()) == (found.run, "failed", "no Java ", [])
    assert schedule.register(later + MINUTE) == 0


def test_a_moment_that_nobody_saw_is_made_up_for_within_the_hour(database: Database) -> None:
    registry(database).put(TargetId("redis", "x"), EACH_MINUTE | {"reconcile": "0 3 * * *"})
    add_target(database, "x", type_name="redis", values=EACH_MINUTE | {"reconcile": "0 3 * * *"}, bucket="b")
    three = now_ms() // 86_400_000 * 86_400_000 + 3 * 3_600_000
    assert Schedule(database).register(three + LATE + 1) == 0
    assert Schedule(database).register(three - 1) == 0
    assert Schedule(database).register(three + LATE) == 1
