"""A clock that was years ahead for a moment delays nothing for longer than a minute after it is right again."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from app.config.arn import TargetId
from app.config.settings import Settings
from app.outbox import processes, tables, upkeep
from app.outbox.delivery.availability import begin_opening, open_breaker
from app.outbox.delivery.due_work import DueWork
from app.outbox.delivery.future_times import bring_back_future_times
from app.outbox.delivery.leases import Leases
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log
from app.outbox.policies import HEARTBEATS
from app.outbox.processes import Process
from app.outbox.reconcile.runs import Reconciliations
from app.outbox.reconcile.schedule import Schedule
from app.outbox.sources.rows import SourceLeases
from tests.support import databases
from tests.support.builders import add_target, event, registry
from tests.support.pulled_events import Sources
from tests.support.scripted_target import Courier, ScriptedTarget, assert_counters_balance
from workers.delivery.outcomes import DELIVERED, Failed
from workers.delivery.retry import RetrySchedule
from workers.runtime import Runtime

pytestmark = [pytest.mark.promise, databases.TWO]

YEARS = 10 * 365 * 86_400_000  # ms
LEASE = 6_000  # ms


def bring_back(database: Database, now: int) -> int:
    return bring_back_future_times(database, LEASE, now)


def record(database: Database) -> TargetId:
    target = add_target(database)
    Log(database).append([[event(f"k{number}") for number in range(40)]])
    return target


def row_id(database: Database, target: TargetId) -> int:
    return registry(database).target(target).row_id


def fail(database: Database, target: TargetId) -> None:
    """Have each event tried once without success."""
    schedule = RetrySchedule(base=86_400_000, cap=86_400_000)
    Courier(database, target, ScriptedTarget(lambda _: Failed("no")), schedule=schedule).run()


def cursors(database: Database) -> sa.Row[tuple[int, ...]]:
    c = tables.cursors.c
    with database.reading() as connection:
        return connection.execute(sa.select(sa.func.min(c.leased_until), sa.func.max(c.leased_until))).one()


def test_a_lease_of_a_worker_that_is_gone_expires(database: Database) -> None:
    target, leases, now = record(database), Leases(database, LEASE), now_ms()
    assert leases.claim(row_id(database, target), range(3), "gone", now + YEARS) is not None
    assert bring_back(database, now) == 3
    assert bring_back(database, now) == 0
    [due] = DueWork(database).find(now)
    assert [one.partition for one in due.partitions] == [3]
    [due] = DueWork(database).find(now + LEASE + 1)
    assert [one.partition for one in due.partitions] == [0, 1, 2, 3]


@databases.ALL
def test_a_worker_keeps_its_lease(database: Database) -> None:
    target, leases, now = record(database), Leases(database, LEASE), now_ms()
    lease = leases.claim(row_id(database, target), range(4), "alive", now + YEARS)
    assert lease is not None
    assert bring_back(database, now) == 4
    assert leases.renew(lease, now + 1_000)
    assert cursors(database) == (now + 7_000, now + 7_000)


def test_leases_and_retries_of_a_clock_that_is_right_are_left_alone(database: Database) -> None:
    target, leases, now = record(database), Leases(database, LEASE), now_ms()
    fail(database, target)
    assert leases.claim(row_id(database, target), range(2), "alive", now + LEASE) is not None
    open_breaker(database, row_id(database, target), "down", now + 900_000, probing=False)
    assert begin_opening(database, registry(database).target(target), now)
    upkeep.record_heartbeat(database, upkeep.DRAIN, now + 1_000)
    Reconciliations(database).begin(target, "images", lease=60_000)
    assert bring_back(database, now) == 0


@databases.THREE
def test_an_event_that_was_tried_in_the_future_is_due(database: Database) -> None:
    target, now = record(database), now_ms()
    fail(database, target)
    p = tables.parked.c
    with database.writing() as connection:
        connection.execute(
            tables.parked.update().values(not_before=now + YEARS, last_tried=now + YEARS - 1_000, attempts=1)
        )
        oldest = connection.execute(sa.select(sa.func.min(p.seq))).scalar_one()
        # It took over the time of a later event of its object.
        connection.execute(tables.parked.update().where(p.seq == oldest).values(last_tried=0, attempts=0))
    assert bring_back(database, now) == 40
    Courier(database, target, ScriptedTarget(lambda _: DELIVERED)).run()
    with database.reading() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(tables.parked)).scalar_one() == 0
    assert_counters_balance(database)


@databases.THREE
def test_a_breaker_lets_a_probe_pass_and_a_target_is_opened(database: Database) -> None:
    target, now = record(database), now_ms()
    open_breaker(database, row_id(database, target), "down", now + YEARS, probing=False)
    assert begin_opening(database, registry(database).target(target), now + YEARS)
    assert DueWork(database).find(now) == []
    assert not begin_opening(database, registry(database).target(target), now)
    assert bring_back(database, now) == 2
    assert len(DueWork(database).find(now)) == 1
    assert begin_opening(database, registry(database).target(target), now)


def test_a_source_of_a_worker_that_is_gone_is_pulled_by_another(database: Database) -> None:
    sources, leases, now = Sources(database), SourceLeases(database, LEASE), now_ms()
    source = sources.put("kafka", {"brokers": "127.0.0.1:9", "topic": "t"})
    held = leases.claim(sources.stored(source), now + YEARS)
    assert held is not None
    assert leases.free(now + LEASE) == []
    assert bring_back(database, now) == 1
    assert bring_back(database, now) == 0
    assert leases.free(now) == []
    leases.renew(held, now)  # of one that is not gone
    assert [one.source for one in leases.free(now + LEASE)] == [source]


def test_a_source_that_failed_in_the_future_is_tried_again(database: Database) -> None:
    sources, leases, now = Sources(database), SourceLeases(database, LEASE), now_ms()
    held = leases.claim(sources.stored(sources.put("kafka", {"brokers": "127.0.0.1:9", "topic": "t"})), now + YEARS)
    assert held is not None
    leases.fail(held, now + YEARS, "no broker", now + YEARS + 500)
    assert leases.free(now) == []
    assert bring_back(database, now) == 1
    assert len(leases.free(now)) == 1


def test_a_source_that_has_just_failed_keeps_its_pause(database: Database) -> None:
    sources, leases, now = Sources(database), SourceLeases(database, LEASE), now_ms()
    held = leases.claim(sources.stored(sources.put("kafka", {"brokers": "127.0.0.1:9", "topic": "t"})), now)
    assert held is not None
    leases.fail(held, now, "no broker", now + 500)
    assert bring_back(database, now) == 0
    assert (len(leases.free(now)), len(leases.free(now + 500))) == (0, 1)


@databases.THREE
def test_a_queue_that_nobody_serves_is_noticed_whatever_a_clock_said(database: Database) -> None:
    add_target(database)
    worker = processes.record_process(database, Process("h:1:x", "w@h", "1", "prefork", ["targets"]))
    with database.writing() as connection:
        connection.execute(tables.targets.update().values(created_at=worker.at + YEARS))
        connection.execute(tables.workers.update().values(served_at=worker.at + YEARS, at=worker.at + YEARS))
    now = now_ms()
    assert bring_back(database, now) == 3, "of the target one time, of the worker two"
    with database.reading() as connection:
        [queue] = processes.read_queues(connection, processes.read_processes(connection), now)
    assert queue.is_served(now)
    assert not queue.is_served(now + HEARTBEATS.unserved_ms + 1)


@databases.THREE
def test_a_job_that_failed_in_the_future_is_overdue_all_the_same(database: Database) -> None:
    now, u = now_ms(), tables.upkeep.c
    with database.writing() as connection:
        connection.execute(tables.upkeep.insert().values(name="purge", succeeded_at=now, failed_at=now + YEARS))
    assert bring_back(database, now) == 1
    with database.reading() as connection:
        assert connection.execute(sa.select(u.succeeded_at, u.failed_at)).one() == (now, now)


@databases.THREE
def test_a_run_that_is_gone_is_replaced_and_the_schedule_goes_on(database: Database) -> None:
    values = {"reconcile": "* * * * *", "address": "127.0.0.1:9", "key": "rows"}
    target = add_target(database, "x", type_name="redis", values=values, bucket="images")
    runs, now = Reconciliations(database), now_ms()
    gone = runs.begin(target, "images", lease=YEARS)
    assert bring_back(database, now) == 1
    assert Schedule(database).register(now + 120_000) == 1, "it is no longer alive"
    runs.end(gone, "clean", {})
    with database.writing() as connection:
        r = tables.reconciliations.c
        connection.execute(tables.reconciliations.delete().where(r.run != gone))
        connection.execute(tables.reconciliations.update().values(started_at=now + YEARS, finished_at=now + YEARS))
    assert Schedule(database).register(now + 120_000) == 1


def test_the_drain_brings_them_back(outbox_url: str, database: Database, tmp_path: Path) -> None:
    target, leases = record(database), Leases(database, LEASE)
    assert leases.claim(row_id(database, target), range(4), "gone", now_ms() + YEARS) is not None
    settings = {"BUCKETWIRE_DATA_DIR": str(tmp_path), "BUCKETWIRE_DATABASE_URL": outbox_url}
    runtime = Runtime(Settings.from_environ(settings))
    runtime.drain.run(lambda _: None)
    runtime.close()
    assert cursors(database)[1] < now_ms() + 2 * LEASE
