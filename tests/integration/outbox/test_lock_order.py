"""Operations that lock the rows of several targets cannot wait for each other for ever."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from app.outbox import log_head, tables
from app.outbox.admin.undelivered import DeadLetters
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from app.resources.undelivered import DeadLetterFilter
from tests.support.builders import add_target, event, registry
from tests.support.scripted_target import Courier, ScriptedTarget, assert_counters_balance
from workers.delivery.outcomes import Rejected

pytestmark = pytest.mark.promise


@pytest.mark.parametrize("operation", ["purge", "replay"])
def test_dead_letters_of_many_targets_are_changed_while_an_append_locks_these(
    database: Database, operation: str
) -> None:
    """An append locks the targets in the order of the database's plan: here the last first."""
    if database.dialect == "sqlite":
        pytest.skip("on SQLite only one transaction writes at a time")
    targets = [add_target(database, name) for name in ("a", "b")]
    first, last = [registry(database).target(target).row_id for target in targets]
    Log(database).append([[event(f"k{number}") for number in range(20)]])
    for target in targets:
        Courier(database, target, ScriptedTarget(lambda _: Rejected("no"))).run()
    t = tables.targets.c

    def count(connection: sa.Connection, row_id: int) -> None:
        connection.execute(tables.targets.update().where(t.id == row_id).values(discarded=t.discarded + 1))

    with ThreadPoolExecutor(1) as pool:
        with database.writing() as connection:
            count(connection, last)
            changed = pool.submit(getattr(DeadLetters(database), operation), DeadLetterFilter())
            time.sleep(1)  # it waits for the last target by then, or will
            count(connection, first)
        assert changed.result(60) == 40
    assert_counters_balance(database)


def test_a_settlement_does_not_wait_for_the_head_of_the_log(database: Database) -> None:
    """It reads the log's epoch in the statement that moves cursors: a lock there would be in the wrong order."""
    if database.dialect == "sqlite":
        pytest.skip("on SQLite only one transaction writes at a time")
    courier = Courier(database, add_target(database))
    Log(database).append([[event("k")]])
    with ThreadPoolExecutor(1) as pool, database.writing() as connection:
        log_head.lock(connection)
        pool.submit(courier.run).result(30)
    assert len(courier.scripted.got) == 1
    assert_counters_balance(database)
