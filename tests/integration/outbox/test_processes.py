"""The processes of the service and what they serve, on each kind of database."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from app.config.arn import TargetId
from app.config.settings import Settings
from app.outbox import processes, tables, upkeep
from app.outbox.delivery.future_times import bring_back_future_times
from app.outbox.engine.database import Database, now_ms
from app.outbox.policies import HEARTBEATS
from app.outbox.processes import ENDED, HINDERED, RUNNING, SILENT, Process, Queue, Refusal
from app.release import VERSION
from tests import services
from tests.support import databases
from tests.support.builders import add_target, migrated, registry
from workers.heartbeat import WorkerHeartbeat

pytestmark = databases.TWO

SECOND = 1000
DAY = 86_400 * SECOND


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Database]:
    """An empty log on SQLite."""
    opened = migrated(f"sqlite:///{tmp_path}/outbox.db")
    yield opened
    opened.close()


def worker(database: Database, worker_id: str = "here:7:x", **values: Any) -> Process:
    found = Process(worker_id, "w@here", "1", "prefork", values.pop("serves", ["targets"]), **values)
    return processes.record_process(database, found)


def listed(database: Database) -> dict[str, Process]:
    with database.reading() as connection:
        return {one.id: one for one in processes.read_processes(connection)}


def queues(database: Database, now: int = 0) -> dict[str, Queue]:
    with database.reading() as connection:
        found = processes.read_queues(connection, processes.read_processes(connection), now or now_ms())
    return {str(queue.target): queue for queue in found}


@databases.THREE
def test_a_process_is_listed_by_name_and_id_and_ends_in_order(database: Database) -> None:
    processes.record_process(database, Process("a:1:x", "x@last", "1", "prefork", ["targets"]))
    worker(database, "there:9:x")
    first = worker(database)
    assert list(listed(database)) == ["here:7:x", "there:9:x", "a:1:x"]
    again = processes.record_process(database, replace(first, processes=[1, 2], jobs=["tables"], address="http://h:1"))
    assert listed(database)["here:7:x"] == again
    assert again.started_at == first.started_at <= again.served_at == again.at
    processes.end_process(database, "here:7:x")
    ended = listed(database)["here:7:x"]
    assert ended.state(ended.at) == ENDED
    assert (ended.at, ended.served_at) == (again.at, again.at), "since then nobody serves what it served"
    processes.record_process(database, again)  # it had only been given up
    assert listed(database)["here:7:x"].state(again.at) == RUNNING


@databases.THREE
def test_a_heartbeat_with_a_problem_says_that_the_process_is_there_and_serves_nothing(database: Database) -> None:
    first = worker(database)
    with database.writing() as connection:
        earlier = tables.workers.update().values(at=first.at - 40 * SECOND, served_at=first.at - 40 * SECOND)
        connection.execute(earlier)
    [stopped] = listed(database).values()
    assert stopped.state(first.at) == SILENT
    away = processes.record_process(database, replace(stopped, problem="no broker\n" + "x" * 1_000))
    assert listed(database)[away.id] == away
    assert away.problem.startswith("no broker x")
    assert len(away.problem) == HEARTBEATS.max_reason_characters
    assert (away.at - first.at < 40 * SECOND, away.served_at) == (True, first.at - 40 * SECOND)
    assert away.state(away.at) == HINDERED
    assert away.state(away.served_at + HEARTBEATS.silence_ms) == RUNNING, "a moment without a broker is none"
    late = processes.record_process(database, replace(away, problem=""), age=5 * SECOND)
    assert late.at == late.served_at < now_ms() - 4 * SECOND, "as of when what it says was so"


@databases.THREE
def test_a_worker_of_the_version_before_serves_while_its_heartbeat_is_new(database: Database) -> None:
    target = add_target(database)
    row = {"id": "old:1:x", "name": "w@old", "version": "0.2", "pool": "prefork", "serves": '["targets"]',
           "processes": "[]", "jobs": "[]", "started_at": 1, "at": now_ms()}  # fmt: skip
    with database.writing() as connection:
        connection.execute(tables.workers.insert().values(row))
    [old] = listed(database).values()
    assert (old.state(row["at"]), old.served_at) == (RUNNING, row["at"])
    assert queues(database)[str(target)].served_at == row["at"]


def test_a_queue_is_served_until_the_last_heartbeat_of_a_worker_that_serves_it(database: Database) -> None:
    add_target(database, "a")
    add_target(database, "b")
    add_target(database, "c", type_name="redis", values={"address": "127.0.0.1:9", "key": "k"})
    add_target(database, "off")
    registry(database).pause(TargetId("webhook", "b"), "a new disk")
    with database.writing() as connection:
        connection.execute(tables.targets.update().where(tables.targets.c.name == "off").values(enabled=False))
    made = queues(database)
    assert made.keys() == {"webhook:a", "webhook:b", "redis:c"}, "a paused one has to be served"
    assert {queue.served_at for queue in made.values()} == {0}
    now = now_ms()
    assert all(queue.is_served(now) for queue in made.values()), "they have just been made"
    later = now + HEARTBEATS.unserved_ms + SECOND
    assert not any(queue.is_served(later) for queue in made.values())
    one = worker(database, "h:1:x", serves=["webhook:a"])
    other = worker(database, "h:2:x", serves=["redis", "drain"])
    worker(database, "h:3:x", serves=["drain"])
    worker(database, "h:4:x", serves=["api"])
    worker(database, "h:5:x", serves=["beat"])
    assert {name: queue.served_at for name, queue in queues(database).items()} == {
        "webhook:a": one.at, "webhook:b": 0, "redis:c": other.at,
    }  # fmt: skip
    every = worker(database, "h:6:x")
    assert {queue.served_at for queue in queues(database).values()} == {every.at}
    processes.end_process(database, every.id)
    [served_at] = {queue.served_at for queue in queues(database).values()}
    assert served_at == every.at, "it is known since when nobody serves them"


@databases.THREE
def test_a_queue_that_the_broker_refuses_is_served_by_another_worker_or_not_at_all(database: Database) -> None:
    for name in ("a", "b"):
        add_target(database, name)
    refusing = processes.record_process(
        database, Process("h:1:x", "w@h", "1", "prefork", ["webhook"]), {"webhook:a": "PRECONDITION_FAILED"}
    )
    found = queues(database)
    assert (found["webhook:a"].served_at, found["webhook:a"].refused) == (refusing.at, "PRECONDITION_FAILED")
    assert (found["webhook:b"].served_at, found["webhook:b"].refused) == (refusing.at, "")
    with database.writing() as connection:
        connection.execute(tables.workers.update().values(refused='{"webhook:a": [5, "ACCESS_REFUSED"]}', started_at=5))
    [refusing] = listed(database).values()
    refusing = processes.record_process(database, refusing, {"webhook:a": "ACCESS_REFUSED"})
    assert refusing.refused == {"webhook:a": Refusal(5, "ACCESS_REFUSED")}, "it is known since when"
    refused = queues(database)["webhook:a"]
    assert (refused.served_at, refused.is_served(refused.created_at + HEARTBEATS.unserved_ms + 1)) == (5, False)
    other = worker(database, "h:2:x", serves=["webhook:a"])
    found = queues(database)
    assert (found["webhook:a"].served_at, found["webhook:a"].refused) == (other.at, "")
    processes.record_process(database, refusing)
    [queue] = [queue for name, queue in queues(database).items() if name == "webhook:a"]
    assert queue.refused == ""
    gone = refusing.at + HEARTBEATS.silence_ms + 60 * SECOND
    processes.record_process(database, refusing, {"webhook:b": ""})
    assert queues(database)["webhook:b"].refused, "a reason that was left out is in the worker's log"
    assert queues(database, gone)["webhook:b"].refused == "", "a worker that is gone refuses nothing"


def test_of_many_refused_queues_all_are_known_and_the_first_with_their_reasons(log: Database) -> None:
    names = {f"webhook:t{number:04}": "x" * 5_000 for number in range(5_000)}
    found = processes.record_process(log, Process("h:1:x", "w@h", "1", "prefork", ["targets"]), names)
    assert listed(log)[found.id].refused == found.refused
    assert found.refused.keys() == names.keys()
    assert sum(len(refusal.reason) for refusal in found.refused.values()) == (
        HEARTBEATS.max_refused_reasons * HEARTBEATS.max_reason_characters
    )


@databases.THREE
def test_what_ended_is_forgotten_after_a_day_but_who_served_something_last(database: Database) -> None:
    now = now_ms()
    for number in range(4):
        worker(database, f"h:{number}:x")
    worker(database, "h:9:x", serves=["drain"])
    w = tables.workers.c
    with database.writing() as connection:
        for number in (0, 1, 9):
            at = now - 2 * DAY + number
            connection.execute(tables.workers.update().where(w.id == f"h:{number}:x").values(at=at, served_at=at))
        connection.execute(tables.workers.update().where(w.id == "h:2:x").values(at=now - DAY // 2))
        connection.execute(tables.workers.update().where(w.id == "h:1:x").values(ended_at=now - 2 * DAY + 5))
    processes.forget_ended(database, now)
    assert listed(database).keys() == {"h:2:x", "h:3:x", "h:9:x"}
    processes.forget_ended(database, now)
    assert listed(database).keys() == {"h:2:x", "h:3:x", "h:9:x"}


def test_a_process_that_is_back_is_not_forgotten(log: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    worker(log)
    newer = worker(log, "here:8:x")
    monkeypatch.setattr(processes, "forgettable", lambda _processes, _now: ["here:7:x", newer.id])
    processes.end_process(log, newer.id)
    processes.forget_ended(log, now_ms())
    assert listed(log).keys() == {"here:7:x"}


@databases.THREE
def test_the_silent_processes_of_a_host_are_forgotten_by_command(database: Database) -> None:
    target = add_target(database)
    for name, serves in (("w@gone", "targets"), ("api@gone", "api"), ("w@there", "targets"), ("drain@gone", "drain")):
        processes.record_process(database, Process(f"{name}:1:x", name, "1", "prefork", [serves]))
    earlier = now_ms() - 60 * SECOND
    gone = tables.workers.update().where(tables.workers.c.name.in_(("w@gone", "api@gone")))
    with database.writing() as connection:
        connection.execute(tables.workers.update().values(started_at=earlier - DAY))
        connection.execute(gone.values(at=earlier, served_at=earlier))
        connection.execute(tables.targets.update().values(created_at=earlier - DAY))
    assert processes.forget_host(database, "gone")
    assert {one.name: one.ended_at > 0 for one in listed(database).values()} == {
        "w@gone": True, "drain@gone": False, "w@there": False,
    }  # fmt: skip
    assert not processes.forget_host(database, "gone"), "its drain is there"
    assert not processes.forget_host(database, "there")
    assert not processes.forget_host(database, "x" * 300)
    with database.writing() as connection:
        connection.execute(tables.workers.delete().where(tables.workers.c.name == "w@there"))
        entries = connection.execute(sa.select(tables.audit.c.action, tables.audit.c.resource)).all()
    assert queues(database)[str(target)].served_at == earlier, "it is still known since when nobody serves it"
    assert [tuple(entry) for entry in entries if entry.action == "process.forget"] == [("process.forget", "host:gone")]


@databases.THREE
def test_heartbeats_of_a_clock_that_was_ahead_are_brought_back(database: Database) -> None:
    worker(database)
    ahead = now_ms() + 365 * DAY
    with database.writing() as connection:
        connection.execute(tables.workers.update().values(at=ahead, started_at=ahead, served_at=ahead, ended_at=ahead))
    worker(database, "here:8:x")
    now = now_ms()
    assert bring_back_future_times(database, 60_000, now) == 4
    found = listed(database)
    one = found["here:7:x"]
    assert (one.at, one.started_at, one.served_at, one.ended_at) == (now, now, now, now)
    assert found["here:8:x"].ended_at == 0


@databases.THREE
def test_the_heartbeats_that_0_2_records_of_queues_are_deleted(database: Database) -> None:
    upkeep.record_heartbeat(database, upkeep.DRAIN, 5)
    for name in ("queue.1", "asked.1", "silent.1", "queue.2"):
        upkeep.record_heartbeat(database, name, 6)
    upkeep.forget_probes(database)
    with database.reading() as connection:
        assert connection.execute(sa.select(tables.heartbeats.c.name)).scalars().all() == ["drain"]
        assert upkeep.last_drain(connection) == 5


def test_a_worker_whose_whole_pool_is_stopped_is_hindered_until_one_goes_on(log: Database, tmp_path: Path) -> None:
    values = {"BUCKETWIRE_DATA_DIR": str(tmp_path), "BUCKETWIRE_DATABASE_URL": str(log.url)}
    pool = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    heartbeat = WorkerHeartbeat(Settings.from_environ(values), "w@here", "prefork", [])

    def problem() -> str:
        heartbeat.record([one.pid for one in pool], [], {})
        [worker] = listed(log).values()
        return worker.problem

    try:
        assert problem() == ""
        pool[0].send_signal(signal.SIGSTOP)
        assert problem() == ""
        pool[1].send_signal(signal.SIGSTOP)
        services.until(lambda: "stopped (SIGSTOP" in problem())
        pool[0].send_signal(signal.SIGCONT)
        services.until(lambda: problem() == "")
        for one in pool:
            one.kill()
            one.wait()
        assert problem() == ""  # its main process makes new ones
    finally:
        for one in pool:
            one.kill()
            one.wait()
        heartbeat.end()


def test_a_worker_says_what_it_serves_and_a_database_that_is_away_stops_nothing(
    log: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at(url: str) -> Settings:
        return Settings.from_environ({"BUCKETWIRE_DATA_DIR": str(tmp_path), "BUCKETWIRE_DATABASE_URL": url})

    settings = at(str(log.url))
    monkeypatch.setenv("BUCKETWIRE_WORKER_TARGETS", "webhook:a,redis")
    heartbeat = WorkerHeartbeat(settings, "w@here", "solo", ["drain"])
    heartbeat.record([5], ["tables"], {})
    [only] = listed(log).values()
    assert (only.pid, only.version, only.serves) == (os.getpid(), VERSION, ["drain", "redis", "webhook:a"])
    assert (only.processes, only.jobs) == ([5], ["tables"])
    heartbeat.record([6], [], {})
    assert listed(log) == {only.id: only}, "the next one is not due yet"
    heartbeat.record([6], [], {"webhook:a": "refused"})
    [only] = listed(log).values()
    assert (only.processes, only.refused.keys()) == ([6], {"webhook:a"}), "but what has changed is"
    heartbeat.record([6], [], {"webhook:a": "refused"}, "no broker")
    assert [one.problem for one in listed(log).values()] == ["no broker"]
    heartbeat.end()
    heartbeat.record([7], [], {})
    heartbeat.end()
    [only] = listed(log).values()
    assert (only.processes, only.ended_at > 0) == ([6], True)
    empty = f"sqlite:///{tmp_path}/empty.db"  # where `migrate` has not run yet
    for url in ("postgresql://a:b@127.0.0.1:9/c", empty):
        heartbeat = WorkerHeartbeat(at(url), "w@here", "solo", [])
        heartbeat.record([], [], {})
        heartbeat.end()
    heartbeat = WorkerHeartbeat(settings, "w" * 1_000, "solo", [])
    heartbeat.record([], [], {})
    assert {one.name for one in listed(log).values()} == {"w@here", "w" * 255}
    heartbeat.end()
