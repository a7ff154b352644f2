"""A target that was set is due to be opened until it was, on each kind of database."""

from __future__ import annotations

import sqlite3

import pytest
import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox import tables
from app.outbox.declared import OPENED, OPENING_DUE, OPENING_FAILED, StoredTarget
from app.outbox.delivery.availability import (
    begin_opening,
    close_breaker,
    open_breaker,
    record_opening,
    targets_to_open,
)
from app.outbox.engine.database import Database, now_ms
from tests.support import databases
from tests.support.builders import add_target, registry

pytestmark = databases.TWO

SECOND = 1000


def stored(database: Database, target: TargetId) -> StoredTarget:
    return registry(database).target(target)


def due(database: Database, now: int, after: int = 0) -> list[TargetId]:
    with database.reading() as connection:
        return [target for _, target in targets_to_open(connection, now, after)]


def begun(database: Database, target: TargetId, now: int) -> bool:
    """Whether a worker that reads the target now has to open it."""
    return begin_opening(database, stored(database, target), now)


def opened(database: Database, known: StoredTarget, problem: str = "", *, now: int = 0) -> bool:
    """Record a result for the settings that a worker has read."""
    return record_opening(database, known.row_id, known.revision, now or now_ms(), problem)


@databases.THREE
def test_a_target_that_was_set_is_opened_by_one_worker_and_again_later_until_it_was(database: Database) -> None:
    target, now = add_target(database), now_ms()
    known = stored(database, target)
    assert known.opening == OPENING_DUE
    assert due(database, now) == [target]
    assert begin_opening(database, known, now)
    assert not begin_opening(database, known, now), "two workers do not open it at once"
    assert due(database, now) == []
    tried = [at for at in range(10, 20_000, 10) if begun(database, target, now + at * SECOND)]
    assert tried[:4] == [10, 30, 70, 150]
    assert tried[-2:] == [15910, 19510], "ever more rarely, every hour at last"
    later = now + 20_000 * SECOND
    assert opened(database, known, now=later)
    known = stored(database, target)
    assert (known.opening, known.opening_at, known.opening_reason) == (OPENED, later, "")
    assert due(database, now + 24 * 3600 * SECOND) == []
    assert not begun(database, target, now + 24 * 3600 * SECOND)


def test_of_many_targets_that_nobody_opens_each_comes_in_its_turn(database: Database) -> None:
    targets, now = {add_target(database, f"t{number:02d}") for number in range(12)}, now_ms()
    first = due(database, now)
    others = due(database, now, stored(database, first[-1]).row_id)
    assert len(first) == len(others) == 10
    assert {*first, *others} == targets


def test_a_worker_that_is_stopped_after_a_statement_holds_no_target(database: Database) -> None:
    """Intake counts the recorded events in the target's row, so it would wait for the worker."""
    if database.dialect == "mysql":
        pytest.skip("its autocommit has another isolation level")
    target, now = add_target(database), now_ms()
    known = stored(database, target)
    intake, passed = Database(database.url.render_as_string(hide_password=False)), list[str]()
    with intake.writing() as connection:
        connection.execute(sa.select(1))

    def stopped(_connection: sa.Connection, _cursor: object, statement: str, *_: object) -> None:
        if not statement.startswith("UPDATE"):
            return
        with intake.engine.connect() as connection:
            if database.dialect == "sqlite":
                driver: sqlite3.Connection = connection.connection.driver_connection
                driver.execute("PRAGMA busy_timeout = 0")
                driver.execute("BEGIN IMMEDIATE")
                driver.execute("ROLLBACK")
            else:
                connection.execute(sa.select(tables.targets.c.id).with_for_update(nowait=True)).all()
        passed.append(statement)

    for engine in (database.engine, database._reader):
        sa.event.listen(engine, "after_cursor_execute", stopped)
        if database.dialect == "sqlite":
            break
    assert begin_opening(database, known, now)
    assert opened(database, known, "no")
    assert open_breaker(database, known.row_id, "away", now, probing=False)
    close_breaker(database, known.row_id)
    assert len(passed) == 4
    intake.close()


@databases.THREE
def test_a_failure_is_kept_with_its_reason_and_changes_neither_breaker_nor_counters(database: Database) -> None:
    known = stored(database, add_target(database))
    assert opened(database, known, "connection\nrefused \0")
    found = stored(database, known.target)
    assert (found.opening, found.opening_reason) == (OPENING_FAILED, "connection refused \ufffd")
    assert (found.state, found.state_reason, found.breaker, found.failures) == ("running", "", "closed", 0)
    open_breaker(database, found.row_id, "away", now_ms() + 60_000, probing=False)
    assert opened(database, known), "and success does not close it: only a delivery does"
    found = stored(database, known.target)
    assert (found.opening, found.state, found.state_reason, found.failures) == (OPENED, "unavailable", "away", 1)


def test_a_failure_of_one_worker_does_not_hide_the_success_of_another(database: Database) -> None:
    known = stored(database, add_target(database))
    assert opened(database, known)
    assert not opened(database, known, "the table exists already")
    assert stored(database, known.target).opening == OPENED


@databases.ONE
def test_a_result_counts_only_for_the_settings_that_were_opened(database: Database) -> None:
    target, now = add_target(database), now_ms()
    before = stored(database, target)
    registry(database).put(target, {"endpoint": "http://127.0.0.1:10/"})
    after = stored(database, target)
    assert after.revision > before.revision
    assert not begin_opening(database, before, now)
    for problem in ("connection refused", ""):
        assert not opened(database, before, problem)
        assert stored(database, target).opening == OPENING_DUE
    assert opened(database, after)
    registry(database).put(target, {"endpoint": "http://127.0.0.1:11/"})
    found = stored(database, target)
    assert (found.opening, found.opening_at) == (OPENING_DUE, 0), "new settings are opened again"
    assert due(database, now) == [target]


@databases.ONE
def test_a_target_that_is_not_delivered_to_is_not_contacted(database: Database) -> None:
    paused, disabled = add_target(database, "paused"), add_target(database, "disabled", enable="off")
    registry(database).put(TargetId("webhook", "broken"), {"endpoint": "x"}, problem="endpoint: is not a URL")
    registry(database).pause(paused, "a new disk")
    assert due(database, now_ms()) == []
    registry(database).resume(paused)
    assert due(database, now_ms()) == [paused]
    registry(database).put(disabled, {"endpoint": "http://127.0.0.1:9/"})
    assert due(database, now_ms()) == [paused, disabled]


def test_a_target_that_is_removed_while_it_is_opened_is_no_error(database: Database) -> None:
    known = stored(database, add_target(database))
    registry(database).remove(known.target, force=True)
    assert not begin_opening(database, known, now_ms())
    assert not opened(database, known)
    assert registry(database).targets() == []


@pytest.mark.parametrize("tries", [1, pytest.param(40, marks=databases.ONE)])
def test_a_target_that_was_tried_often_is_opened_at_once_with_new_settings(database: Database, tries: int) -> None:
    target, now = add_target(database), now_ms()
    for number in range(tries):
        assert begun(database, target, now + number * 3600 * SECOND)
    registry(database).put(target, {"endpoint": "http://127.0.0.1:10/"})
    assert begun(database, target, now)
