"""Incremental runs: which of the log's events the next one asks for, and what such a run says, on each database."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sqlalchemy as sa

from app.config.arn import TargetId
from app.config.errors import BadValue
from app.outbox import log_head, tables
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database, now_ms
from app.outbox.errors import AlreadyRunning
from app.outbox.log.append import Log
from app.outbox.reconcile import log_queries
from app.outbox.reconcile.log_queries import keys_named, log_mark, problem_of_position
from app.outbox.reconcile.runs import INCREMENTAL, LogPosition, Reconciliations, latest_results
from app.outbox.reconcile.schedule import RunRequests, RunState, Schedule, read_run_states
from tests.support.builders import add_target, event, registry

_C, _E = tables.cursors.c, tables.events.c
LATER = 1 << 50  # ms: later than every event
MIRROR = {"address": "127.0.0.1:9", "key": "rows"}
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


def states(database: Database, *, later: int = 0) -> dict[tuple[str, str], RunState]:
    with database.reading() as connection:
        now = database_now(connection) + later
        found = read_run_states(connection, now, tables_schedule="", oldest=now - 30 * DAY)
    return {(state.kind, state.bucket): state for state in found}


def position(database: Database, target: TargetId, *, young: int = LATER) -> LogPosition:
    return log_mark(database, target, "images", list, young=young).position


def named(database: Database, target: TargetId, after: LogPosition) -> list[str]:
    return sorted(keys_named(database, target, "images", after=after.seq, until=1 << 40))


def deliver(database: Database, upto: int) -> None:
    """Have the targets' cursors pass the events up to a seq."""
    with database.writing() as connection:
        connection.execute(tables.cursors.update().where(_C.position < upto).values(position=upto))


def seqs(database: Database) -> dict[str, int]:
    with database.reading() as connection:
        return {row.key: row.seq for row in connection.execute(sa.select(_E.key, _E.seq))}


def test_the_next_run_asks_for_what_was_not_delivered_or_young_when_the_last_one_compared(database: Database) -> None:
    target = add_target(database, "x", type_name="redis", values=MIRROR, bucket="images")
    log = Log(database)
    assert position(database, target).seq == 0
    log.append([[event("delivered"), event("elsewhere", bucket="other")]])
    deliver(database, seqs(database)["elsewhere"])
    before = position(database, target)
    log.append([[event("waits")]])
    since = position(database, target)
    log.append([[event("removed", name="s3:ObjectRemoved:Delete"), event("waits"), event("x", bucket="other")]])
    assert named(database, target, since) == ["removed", "waits"] == named(database, target, before)
    deliver(database, 1 << 40)
    assert named(database, target, position(database, target)) == []
    recent = position(database, target, young=now_ms() - MINUTE)
    assert named(database, target, recent) == ["delivered", "removed", "waits"]
    assert recent.at <= now_ms()
    read = event("read", name="s3:ObjectAccessed:Get")
    log.append([[read]])
    assert "read" in named(database, target, recent)  # it went to the target, whose row it may have changed
    other = add_target(database, "y", type_name="redis", values=MIRROR)
    log.append([[event("new")]])
    assert named(database, other, recent) == ["delivered", "new", "removed", "waits"]


def test_young_events_are_found_behind_gaps_and_by_several_readings(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_queries, "_YOUNG_SEQS", 2)
    target, log = add_target(database, "x", type_name="redis", values=MIRROR, bucket="images"), Log(database)
    log.append([[event(f"old{number}") for number in range(20)]])
    with database.writing() as connection:
        connection.execute(tables.events.update().values(received_at=now_ms() - HOUR))
        head = tables.log_head.c
        connection.execute(tables.log_head.update().values(last_seq=head.last_seq + 9))  # of rolled back events
    log.append([[event(f"new{number}") for number in range(9)]])
    deliver(database, 1 << 40)
    since = position(database, target, young=now_ms() - MINUTE)
    found = named(database, target, since)
    assert {f"new{number}" for number in range(9)} <= set(found)
    assert len(found) < 29
    with database.reading() as connection:
        read = sa.select(sa.func.min(_E.received_at)).where(_E.seq > since.seq)
        assert since.at <= connection.execute(read).scalar_one()


def test_a_position_is_of_no_use_once_its_events_may_have_left_the_log(database: Database) -> None:
    target, log = add_target(database, "x", type_name="redis", values=MIRROR, bucket="images"), Log(database)
    log.append([[event("a")]])
    since = position(database, target)
    assert problem_of_position(database, since, DAY) == ""
    assert "may have left the log" in problem_of_position(database, replace(since, at=since.at - DAY), DAY)
    # The target was away: what it had not got then may leave the log as soon as it has got it.
    with database.writing() as connection:
        connection.execute(tables.events.update().values(received_at=now_ms() - 2 * DAY))
    assert "may have left the log" in problem_of_position(database, position(database, target), DAY)
    assert "restored" in problem_of_position(database, replace(since, seq=since.seq + 9), DAY)
    with database.writing() as connection:
        log_head.begin_epoch(connection, "test")
    assert "restored" in problem_of_position(database, since, DAY)


def test_an_incremental_run_goes_on_from_the_last_run_that_compared_all(database: Database) -> None:
    runs, target = Reconciliations(database), TargetId("redis", "x")

    def ended(state: str, seq: int | None, **begin: str) -> None:
        run = runs.begin(target, "images", lease=MINUTE, **begin)
        runs.end(run, state, {}, position=None if seq is None else LogPosition(seq, 1, "e"))

    assert runs.last_position(target, "images") is None
    ended("failed", 1)
    ended("clean", 2, prefix="a/")
    ended("clean", None)
    assert runs.last_position(target, "images") is None
    ended("drift", 3)
    ended("clean", 4, job=INCREMENTAL)
    ended("failed", None, job=INCREMENTAL)
    assert runs.last_position(target, "images") == LogPosition(4, 1, "e")
    assert runs.last_position(target, "other") is None


def test_an_incremental_run_says_nothing_of_the_bucket(database: Database) -> None:
    schedule = MIRROR | {"reconcile": "0 * * * *"}
    target = add_target(database, "x", type_name="redis", values=schedule, bucket="images")
    runs, requests = Reconciliations(database), RunRequests(database, registry(database))
    asked = requests.start(target, "images", repair=False, incremental=True)
    assert (asked.job, asked.state) == ("incremental", "waiting")
    with pytest.raises(AlreadyRunning):
        requests.start(target, "images", repair=False)
    [waiting] = Schedule(database).waiting()
    assert (waiting.job, waiting.first) == ("incremental", True)
    runs.end(runs.begin(target, "images", lease=MINUTE, run=asked.run), "drift", {"objects": 3, "missing": 1})
    with database.reading() as connection:
        assert latest_results(connection) == []
    assert runs.last_size(target, "images") == 0
    repairing = requests.repair(asked.run)
    assert (repairing.job, repairing.repair) == ("incremental", True)
    runs.end(runs.begin(target, "images", lease=MINUTE, run=repairing.run), "failed", {}, problem="SlowDown")
    assert states(database)["incremental", "images"].problem == "SlowDown"
    assert states(database)["reconcile", "images"].failed_at == 0
    later = now_ms() // HOUR * HOUR + HOUR + MINUTE
    assert Schedule(database).register(later) == 1, "it counted as the scheduled one"
    with pytest.raises(BadValue, match="no prefix"):
        requests.start(target, "images", repair=False, incremental=True, prefix="a/")
    runs.delete_old(target, "images", now_ms() + HOUR, job=INCREMENTAL)
    assert [run.job for run in runs.list()] == ["reconcile", "incremental", "incremental"]  # the last of each state


def test_incremental_runs_have_a_schedule_for_which_whole_runs_count(database: Database) -> None:
    values = MIRROR | {"reconcile": "0 * * * *", "reconcile_incremental": "*/15 * * * *"}
    target = add_target(database, "x", type_name="redis", values=values, bucket="images")
    schedule, runs = Schedule(database), Reconciliations(database)
    hour = now_ms() // HOUR * HOUR + HOUR

    def registered(at: int) -> list[str]:
        schedule.register(at)
        jobs = [waiting.job for waiting in schedule.waiting()]
        for waiting in schedule.waiting():
            runs.end(runs.begin(target, "images", lease=MINUTE, run=waiting.run), "clean", {})
        return jobs

    assert registered(hour) == ["reconcile"]  # both are due, and the whole one is of the same keys
    assert registered(hour + 14 * MINUTE) == []
    assert registered(hour + 15 * MINUTE) == ["incremental"]
    assert registered(hour + 30 * MINUTE) == ["incremental"]
    assert registered(hour + HOUR) == ["reconcile"]


def until_half_past(hours: int) -> int:
    """Milliseconds until the middle of a later hour: in its first minute a run of that hour is not overdue yet."""
    now = now_ms()
    return (now // HOUR + hours) * HOUR + HOUR // 2 - now


def test_a_whole_run_makes_no_incremental_one_overdue(database: Database) -> None:
    values = MIRROR | {"reconcile_incremental": "0 * * * *"}
    target = add_target(database, "x", type_name="redis", values=values, bucket="images")
    with database.writing() as connection:
        connection.execute(tables.targets.update().values(created_at=1))
        connection.execute(tables.buckets.update().values(created_at=1))
    assert states(database, later=until_half_past(1))["incremental", "images"].due_at > 0
    runs = Reconciliations(database)
    runs.end(runs.begin(target, "images", lease=MINUTE), "clean", {})
    assert states(database, later=0)["incremental", "images"].due_at == 0
    assert states(database, later=until_half_past(2))["incremental", "images"].due_at > 0
