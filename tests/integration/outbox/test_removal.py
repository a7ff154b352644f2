"""A target with a large backlog is removed in batches, for which nothing else waits, and which may be stopped."""

import pytest
import sqlalchemy as sa

from app.outbox import registry as registry_module
from app.outbox import tables
from app.outbox.admin.counters import read_status
from app.outbox.audit import AuditFilter, entries
from app.outbox.column_values import NEVER
from app.outbox.declared import UnknownTarget
from app.outbox.delivery import transitions
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from app.outbox.log_head import LogHead
from app.outbox.policies import RemovalPolicy
from tests.support import databases
from tests.support.builders import add_target, event, registry
from tests.support.scripted_target import Courier, assert_counters_balance
from workers.delivery.outcomes import Failed, Rejected
from workers.delivery.retry import RetrySchedule

pytestmark = [pytest.mark.promise, databases.TWO]

BATCH = 10
HOUR = 3_600_000


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "REMOVAL", RemovalPolicy(batch_events=BATCH))


def with_backlog(database: Database) -> Courier:
    """Of a target's events 25 are dead letters, 24 are parked (of 12 objects) and 3 are pending."""
    courier = Courier(database, add_target(database), schedule=RetrySchedule(base=HOUR, cap=HOUR), batch=100)
    courier.scripted.script = lambda one: Rejected("no") if one.key.startswith("dead") else Failed("later")
    Log(database).append([[event(f"dead-{number}") for number in range(25)]])
    Log(database).append([[event(f"parked-{number % 12}") for number in range(24)]])
    courier.run()
    Log(database).append([[event(f"pending-{number}") for number in range(3)]])
    with database.reading() as connection:
        [status] = read_status(connection)
    assert (status.counters.dead, status.counters.parked, status.counters.pending) == (25, 24, 3)
    return courier


def rows(database: Database) -> dict[str, int]:
    """How many rows there are of each table that refers to a target."""
    with database.reading() as connection:
        return {
            table.name: connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
            for table in (tables.targets, tables.rules, tables.cursors, tables.parked, tables.dead_letters)
        }


def test_the_logs_head_is_not_locked_while_a_backlog_is_removed(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    courier = with_backlog(database)
    steps: list[object] = []
    lock, purge = registry_module.log_head.change_routing, transitions.purge_any

    def locked(connection: sa.Connection) -> LogHead:
        steps.append("lock")
        return lock(connection)

    def purged(connection: sa.Connection, target_id: int, count: int) -> int:
        steps.append(number := purge(connection, target_id, count))
        return number

    monkeypatch.setattr(registry_module.log_head, "change_routing", locked)
    monkeypatch.setattr(transitions, "purge_any", purged)
    lost = registry(database).remove(courier.target, force=True)
    assert steps == ["lock", 10, 10, 10, 10, 9, "lock"]
    assert lost == ["1 rule", "27 undelivered events", "25 dead letters"]
    assert set(rows(database).values()) == {0}


def test_a_removal_that_is_stopped_leaves_a_disabled_target_and_goes_on_later(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    courier = with_backlog(database)
    purge, batches = transitions.purge_any, iter(range(3))

    def stopped(connection: sa.Connection, target_id: int, count: int) -> int:
        if next(batches, None) is None:
            raise KeyboardInterrupt
        return purge(connection, target_id, count)

    monkeypatch.setattr(transitions, "purge_any", stopped)
    with pytest.raises(KeyboardInterrupt):
        registry(database).remove(courier.target, force=True)
    with database.reading() as connection:
        [status] = read_status(connection)
    assert status.stored.state == "disabled"
    assert "remove it once more" in status.stored.state_reason
    counters = status.counters
    assert (counters.parked, counters.dead, counters.pending, counters.purged) == (0, 19, 3, 30)
    assert_counters_balance(database)
    assert rows(database)["rules"] == 0
    Log(database).append([[event("parked-1")]])
    with database.reading() as connection:
        assert read_status(connection)[0].counters.recorded == counters.recorded, "nothing is recorded for it"
    monkeypatch.setattr(transitions, "purge_any", purge)
    lost = registry(database).remove(courier.target, force=True)
    assert lost == ["3 undelivered events", "19 dead letters"]
    assert set(rows(database).values()) == {0}
    with pytest.raises(UnknownTarget):
        registry(database).target(courier.target)
    actions = [entry.action for entry in entries(database, AuditFilter(), limit=10)]
    assert actions[:3] == ["target.remove", "target.disable", "rule.remove"]


def test_a_removal_leaves_a_target_alone_that_was_created_with_the_same_name_meanwhile(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that waited too long has sent its request again, and went on when the second one was answered."""
    courier = with_backlog(database)
    purge, batches = transitions.purge_any, iter(range(2))

    def overtaken(connection: sa.Connection, target_id: int, count: int) -> int:
        if next(batches, None) == 1:
            connection.rollback()  # this request stands still between two of its batches
            monkeypatch.setattr(transitions, "purge_any", purge)
            registry(database).remove(courier.target, force=True)
            assert add_target(database) == courier.target
            Log(database).append([[event("new")]])
            return 0
        return purge(connection, target_id, count)

    monkeypatch.setattr(transitions, "purge_any", overtaken)
    lost = registry(database).remove(courier.target, force=True)
    assert lost[0] == "1 rule", "of the target that was meant"
    with database.reading() as connection:
        [status] = read_status(connection)
    assert (status.stored.state, status.counters.pending) == ("running", 1)


@databases.THREE
def test_what_a_stopped_removal_has_left_parked_is_still_due(database: Database) -> None:
    """The target may be enabled again instead."""
    courier = with_backlog(database)
    row_id = registry(database).target(courier.target).row_id
    with database.writing() as connection:
        assert transitions.purge_any(connection, row_id, BATCH) == BATCH
    assert_counters_balance(database)
    p = tables.parked.c
    with database.reading() as connection:
        query = sa.select(sa.func.count(), sa.func.min(p.not_before)).group_by(p.key_hash)
        objects = [(int(row[0]), int(row[1])) for row in connection.execute(query)]
    assert sum(events for events, _ in objects) == 14
    assert all(first_due < NEVER for _, first_due in objects)
