"""A deadlock, of which the database ends one side, is nobody's error: that side is tried again."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event as Flag
from typing import Any

import pytest
import sqlalchemy as sa

from app.config.arn import TargetId
from app.events.model import Event
from app.outbox import audit, log_head, migration, schema_version, tables
from app.outbox import registry as registry_module
from app.outbox.admin.undelivered import DeadLetters, Retries
from app.outbox.audit import AuditFilter
from app.outbox.delivery import settlement_store
from app.outbox.delivery.leases import Leases
from app.outbox.engine import mysql, postgresql
from app.outbox.engine.database import Database, now_ms
from app.outbox.log import append
from app.outbox.log.append import Log, Receipt
from app.resources.undelivered import DeadLetterFilter, RetryFilter
from tests.support.builders import add_target, event, registry
from tests.support.lost_transactions import lost_once
from tests.support.scripted_target import Courier, ScriptedTarget, assert_counters_balance
from workers.delivery.outcomes import Failed, Outcome, Rejected

pytestmark = [
    pytest.mark.promise,
    pytest.mark.parametrize("outbox_url", ["postgresql", "mysql", "mariadb"], indirect=True),
]


def lose(
    database: Database,
    work: Callable[[], Any],
    reached: Flag,
    first: Callable[[sa.Connection], object],
    then: Callable[[sa.Connection], object],
) -> Any:
    """Have `work` lose a deadlock: it is about to want what is locked `first` when it has `reached` the flag."""
    with ThreadPoolExecutor(1) as pool:
        with database.writing() as connection:
            # The larger transaction wins; of PostgreSQL that which looks for a deadlock last.
            if database.dialect == "postgresql":
                connection.execute(sa.text("SET LOCAL deadlock_timeout = '60s'"))
            rows = [{"name": f"bucket-{number}", "created_at": 0} for number in range(500)]
            connection.execute(tables.buckets.insert(), rows)
            first(connection)
            working = pool.submit(work)
            assert reached.wait(30)
            time.sleep(0.3)  # so that `work` waits first
            then(connection)
        return working.result(60)


def flagged(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> Flag:
    """A flag that is set when this function is called."""
    flag, function = Flag(), getattr(module, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        flag.set()
        return function(*args, **kwargs)

    monkeypatch.setattr(module, name, call)
    return flag


def one_second_for_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(postgresql._SESSION, "lock_timeout", "1s")
    for name in mysql._SESSION.keys() & {"innodb_lock_wait_timeout", "lock_wait_timeout"}:
        monkeypatch.setitem(mysql._SESSION, name, 1)


def lock_target(database: Database, target: TargetId) -> Callable[[sa.Connection], object]:
    row_id = registry(database).target(target).row_id
    lock = sa.select(tables.targets.c.id).where(tables.targets.c.id == row_id).with_for_update(key_share=True)
    return lambda connection: connection.execute(lock).all()


@pytest.mark.parametrize("beside", [False, True])
def test_an_append_that_loses_a_deadlock_records_its_events(
    database: Database, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    target = add_target(database)
    reached, log, one = flagged(monkeypatch, append, "_count"), Log(database), event()

    def work() -> object:
        return log.append([[one]], beside=(lambda *_: None) if beside else None)[0]

    answer = lose(database, work, reached, lock_target(database, target), log_head.lock)
    assert isinstance(answer, Receipt)
    assert (answer.recorded, answer.repeated) == (1, 0)
    [again] = log.append([[one]])
    assert isinstance(again, Receipt)
    assert again.repeated == 1
    assert_counters_balance(database)


def test_a_settlement_that_loses_a_deadlock_is_written(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    target = add_target(database)
    Log(database).append([[event("k")]])
    tried: list[str] = []

    def fail(one: Event) -> Outcome:
        tried.append(one.id)
        return Failed("no")

    courier = Courier(database, target, ScriptedTarget(fail))
    reached = flagged(monkeypatch, settlement_store, "_count_in_row")
    locked, cursors = lock_target(database, target), sa.select(tables.cursors.c.target_id).with_for_update()
    lose(database, partial(courier.run, turns=1), reached, locked, lambda one: one.execute(cursors).all())
    with database.reading() as connection:
        assert connection.execute(sa.select(tables.parked.c.attempts)).scalars().all() == [len(tried)]
    assert_counters_balance(database)


def test_a_change_of_a_target_that_loses_a_deadlock_is_made(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = add_target(database)
    lock = lock_target(database, target)
    reached = flagged(monkeypatch, registry_module, "find_target")
    lose(database, lambda: registry(database).pause(target, "why"), reached, lock, log_head.lock)
    assert registry(database).target(target).paused


def test_a_lease_that_loses_a_deadlock_is_claimed_renewed_and_released(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    row_id = registry(database).target(add_target(database)).row_id
    leases = Leases(database, 60_000)
    with monkeypatch.context() as patch:
        lost = lost_once(database, patch)
        lease = leases.claim(row_id, [0, 1], "token", now_ms())
        assert lease is not None
        for call in (lambda: leases.renew(lease, now_ms()), lambda: leases.release(lease)):
            lost.clear()
            call()
            assert lost == ["committing"] * 2
    assert leases.claim(row_id, [0, 1], "other", now_ms()) is not None


@pytest.mark.parametrize("operation", ["replay", "purge", "try_now", "give_up"])
def test_an_operation_on_many_events_that_loses_a_deadlock_is_made_and_counted_once(
    database: Database, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    target = add_target(database)
    Log(database).append([[event(f"{number}") for number in range(5)]])
    refuse = Rejected("never") if operation in ("replay", "purge") else Failed("not now")
    Courier(database, target, ScriptedTarget(lambda _: refuse)).run(turns=1)
    letters, retries = DeadLetters(database), Retries(database)
    work = {
        "replay": lambda: letters.replay(DeadLetterFilter()),
        "purge": lambda: letters.purge(DeadLetterFilter()),
        "try_now": lambda: retries.try_now(RetryFilter()),
        "give_up": lambda: retries.give_up(RetryFilter()),
    }[operation]
    with monkeypatch.context() as patch:
        lost = lost_once(database, patch)
        assert work() == 5
    assert lost.count("writing") >= 2
    [entry] = audit.entries(database, AuditFilter(), limit=1)
    assert 5 in entry.details.values()
    assert_counters_balance(database)


def test_an_append_waits_longer_than_one_lock_while_the_server_stands_still(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that is gone waits for one lock only; one that is there asks again."""
    target = add_target(database)
    one_second_for_locks(monkeypatch)
    impatient = Database(database.url.render_as_string(hide_password=False))
    try:
        with ThreadPoolExecutor(1) as pool, database.writing() as connection:
            log_head.lock(connection)
            recording = pool.submit(Log(impatient).append, [[event("k")]])
            time.sleep(2.5)
            assert not recording.done()
    finally:
        impatient.close()
    [receipt] = recording.result()
    assert isinstance(receipt, Receipt)
    assert receipt.matched == {target: 1}


def _rows_of_runs(database: Database) -> int:
    with database.reading() as connection:
        return int(connection.execute(sa.text("SELECT count(*) FROM reconciliations")).scalar_one())


def test_a_migration_waits_for_a_reader_and_for_another_migration(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dump reads for minutes, and what waits for it must not keep others waiting for as long."""
    migration.downgrade(database, "0017")
    one_second_for_locks(monkeypatch)
    impatient = Database(database.url.render_as_string(hide_password=False), patience=None)
    take, give = migration._LOCKS[database.engine.dialect.name]
    try:
        with ThreadPoolExecutor(2) as pool, database.engine.connect() as other, database.engine.connect() as dump:
            other.execute(sa.text(take.partition(" FROM")[0]))
            other.commit()
            dump.execute(sa.text("SELECT * FROM reconciliations"))
            migrating = pool.submit(migration.migrate, impatient)
            time.sleep(2.5)
            assert not migrating.done()
            other.execute(sa.text(give))
            other.commit()
            time.sleep(1)
            reading = pool.submit(partial(_rows_of_runs, database))
            assert reading.result(15) == 0  # behind the migration, and not behind the dump
            time.sleep(1.5)
            assert not migrating.done()
            dump.rollback()
            migrating.result(60)
    finally:
        impatient.close()
    assert schema_version.current(database) == schema_version.current(impatient)
    assert "prefix" in {column["name"] for column in sa.inspect(database.engine).get_columns("reconciliations")}
