"""A target that was set is offered to be opened until it was, on each kind of database."""

from __future__ import annotations

import sqlite3

import pytest
import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox import tables
from app.outbox.delivery.availability import (
    Opening,
    close_breaker,
    offer_openings,
    open_breaker,
    postpone_opening,
    record_opening,
)
from app.outbox.engine.database import Database, now_ms
from app.outbox.targets import OPENED, OPENING_DUE, OPENING_FAILED, StoredTarget
from tests.support import databases
from tests.support.builders import add_target, registry

pytestmark = databases.TWO

SECOND = 1000


def stored(database: Database, target: TargetId) -> StoredTarget:
    return registry(database).target(target)


def opened(database: Database, opening: Opening, problem: str = "", *, now: int = 0) -> bool:
    """Record a result for the settings that were offered."""
    row_id = stored(database, opening.target).row_id
    return record_opening(database, row_id, opening.revision, now or now_ms(), problem)


@pytest.mark.slow
def test_a_target_that_was_set_is_offered_once_and_again_later_until_it_is_opened(database: Database) -> None:
    target, now = add_target(database), now_ms()
    assert stored(database, target).opening == OPENING_DUE
    [opening] = offer_openings(database, now)
    found = stored(database, target)
    assert opening == Opening(target, found.revision, found.opening_due_at)
    assert offer_openings(database, now) == [], "two drains do not offer it at once"
    offered = [at for at in range(10, 20_000, 10) if offer_openings(database, now + at * SECOND)]
    assert offered[:4] == [10, 30, 70, 150]
    assert offered[-2:] == [15910, 19510], "ever more rarely, every hour at last"
    later = now + 20_000 * SECOND
    assert opened(database, opening, now=later)
    found = stored(database, target)
    assert (found.opening, found.opening_at, found.opening_reason) == (OPENED, later, "")
    assert offer_openings(database, now + 24 * 3600 * SECOND) == []


@databases.THREE
def test_an_offer_that_was_postponed_is_made_again_soon_and_counts_as_no_try(database: Database) -> None:
    target, now = add_target(database), now_ms()
    row_id = stored(database, target).row_id
    [late] = offer_openings(database, now)
    for second in range(10, 30, 2):
        [opening] = offer_openings(database, now + second * SECOND)
        assert opening.next_at == now + (second + 20) * SECOND, "the second try, however often it was postponed"
        postpone_opening(database, row_id, late, now)
        assert stored(database, target).opening_due_at == opening.next_at, "only the newest offer can be postponed"
        postpone_opening(database, row_id, opening, now + second * SECOND)
        assert offer_openings(database, now + (second + 1) * SECOND) == []


@databases.ONE
def test_of_many_targets_some_are_offered_at_a_time(database: Database) -> None:
    targets, now = {add_target(database, f"t{number}") for number in range(12)}, now_ms()
    offered = [[opening.target for opening in offer_openings(database, now)] for _ in range(14)]
    assert max(map(len, offered)) <= 10
    assert sorted(str(target) for some in offered for target in some) == sorted(map(str, targets))


def test_a_worker_that_is_stopped_after_a_statement_holds_no_target(database: Database) -> None:
    """Intake counts the recorded events in the target's row, so it would wait for the worker."""
    if database.dialect == "mysql":
        pytest.skip("its autocommit has another isolation level")
    target, now = add_target(database), now_ms()
    row_id = stored(database, target).row_id
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
    [opening] = offer_openings(database, now)
    postpone_opening(database, row_id, opening, now)
    assert record_opening(database, row_id, opening.revision, now, "no")
    assert open_breaker(database, row_id, "away", now, probing=False)
    close_breaker(database, row_id)
    assert len(passed) == 5
    intake.close()


@databases.THREE
def test_a_failure_is_kept_with_its_reason_and_changes_neither_breaker_nor_counters(database: Database) -> None:
    target = add_target(database)
    [opening] = offer_openings(database, now_ms())
    assert opened(database, opening, "connection\nrefused \0")
    found = stored(database, target)
    assert (found.opening, found.opening_reason) == (OPENING_FAILED, "connection refused \ufffd")
    assert (found.state, found.state_reason, found.breaker, found.failures) == ("running", "", "closed", 0)
    open_breaker(database, found.row_id, "away", now_ms() + 60_000, probing=False)
    assert opened(database, opening), "and success does not close it: only a delivery does"
    found = stored(database, target)
    assert (found.opening, found.state, found.state_reason, found.failures) == (OPENED, "unavailable", "away", 1)


def test_a_failure_of_one_worker_does_not_hide_the_success_of_another(database: Database) -> None:
    target = add_target(database)
    [opening] = offer_openings(database, now_ms())
    assert opened(database, opening)
    assert not opened(database, opening, "the table exists already")
    assert stored(database, target).opening == OPENED


@databases.ONE
def test_a_result_counts_only_for_the_settings_that_were_opened(database: Database) -> None:
    target, now = add_target(database), now_ms()
    [before] = offer_openings(database, now)
    registry(database).put(target, {"endpoint": "http://127.0.0.1:10/"})
    [after] = offer_openings(database, now)
    assert after.revision > before.revision
    for problem in ("connection refused", ""):
        assert not opened(database, before, problem)
        assert stored(database, target).opening == OPENING_DUE
    assert opened(database, after)
    registry(database).put(target, {"endpoint": "http://127.0.0.1:11/"})
    found = stored(database, target)
    assert (found.opening, found.opening_at) == (OPENING_DUE, 0), "new settings are opened again"
    assert len(offer_openings(database, now)) == 1


@databases.ONE
def test_a_target_that_is_not_delivered_to_is_not_contacted(database: Database) -> None:
    paused, disabled = add_target(database, "paused"), add_target(database, "disabled", enable="off")
    registry(database).put(TargetId("webhook", "broken"), {"endpoint": "x"}, problem="endpoint: is not a URL")
    registry(database).pause(paused, "a new disk")
    assert offer_openings(database, now_ms()) == []
    registry(database).resume(paused)
    assert [opening.target for opening in offer_openings(database, now_ms())] == [paused]
    registry(database).put(disabled, {"endpoint": "http://127.0.0.1:9/"})
    assert [opening.target for opening in offer_openings(database, now_ms())] == [disabled]


def test_a_target_that_is_removed_while_it_is_opened_is_no_error(database: Database) -> None:
    target = add_target(database)
    [opening] = offer_openings(database, now_ms())
    row_id = stored(database, target).row_id
    registry(database).remove(target, force=True)
    assert not record_opening(database, row_id, opening.revision, now_ms())
    assert registry(database).targets() == []


@pytest.mark.parametrize("tries", [1, pytest.param(40, marks=databases.ONE)])
def test_a_target_that_was_offered_often_is_offered_at_once_with_new_settings(database: Database, tries: int) -> None:
    target, now = add_target(database), now_ms()
    for number in range(tries):
        assert len(offer_openings(database, now + number * 3600 * SECOND)) == 1
    registry(database).put(target, {"endpoint": "http://127.0.0.1:10/"})
    assert len(offer_openings(database, now)) == 1
