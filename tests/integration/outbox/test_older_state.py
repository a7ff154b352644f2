"""The outbox is an older state of itself than before, after a failover to a lagging replica or a restore."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

import pytest
import sqlalchemy as sa

from app.config.arn import TargetId
from app.events.model import Event
from app.outbox import log_head, tables
from app.outbox.admin.replays import Replays, Selection
from app.outbox.audit import AuditFilter, entries
from app.outbox.delivery.due_work import DueWork
from app.outbox.delivery.leases import LeaseLost, Leases
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log
from app.outbox.log.reading import log_state
from app.rules.model import Rule
from tests.support import databases
from tests.support.builders import add_target, event, registry
from tests.support.older_state import older_state
from tests.support.scripted_target import Courier, ScriptedTarget, assert_counters_balance
from workers.delivery.outcomes import DELIVERED, Outcome

pytestmark = [pytest.mark.promise, databases.TWO]


def turns(number: int) -> Callable[[], bool]:
    left = iter(range(number - 1))
    return lambda: next(left, None) is None


def test_a_cursor_that_stands_elsewhere_is_not_moved(database: Database) -> None:
    """The older state has the lease, but not what its holder has settled since, nor the events."""
    target = add_target(database)
    courier = Courier(database, target, batch=1)
    holder = courier.partitions()
    assert holder is not None
    with older_state(database):
        Log(database).append([[event("a"), event("a")]])
        holder.work_off(turns(1))
        assert len(courier.scripted.got) == 1
    since = [event("a"), event("a")]
    Log(database).append([since])
    with pytest.raises(LeaseLost):
        holder.work_off(turns(1))
    assert_all_arrive(courier, since)


def test_a_replay_that_stands_elsewhere_is_not_moved(database: Database) -> None:
    target = add_target(database)
    courier = Courier(database, target, batch=1)
    events = [event("a") for _ in range(4)]
    Log(database).append([events])
    courier.run()
    Replays(database).begin(target, Selection())
    holder = courier.partitions()
    assert holder is not None
    courier.scripted.got.clear()
    with older_state(database):
        holder.work_off(turns(1))
        assert len(courier.scripted.got) == 1
    with pytest.raises(LeaseLost):
        holder.work_off(turns(1))
    assert_all_arrive(courier, events)


def lose_lease_in_restore(database: Database, then: Callable[[], object]) -> Courier:
    """Restore the older state, and do something then, while a batch of the lost log is being delivered."""

    def restored(_: Event) -> Outcome:
        courier.scripted.script = lambda _: DELIVERED
        restore.close()
        then()
        return DELIVERED

    courier = Courier(database, add_target(database), ScriptedTarget(restored))
    holder = courier.partitions()
    assert holder is not None
    with ExitStack() as restore:
        restore.enter_context(older_state(database))
        Log(database).append([[event("b"), event("b")]])
        with pytest.raises(LeaseLost):
            holder.work_off(turns(1))
    return courier


def begin_epoch(database: Database) -> None:
    with database.writing() as connection:
        assert log_head.begin_epoch(connection, "a test")


def test_a_new_epoch_ends_every_lease(database: Database) -> None:
    """The older state has the lease and its cursor, but other events at the positions that its holder has read."""
    since = [event("b") for _ in range(3)]

    def then() -> None:
        begin_epoch(database)
        Log(database).append([since])

    assert_all_arrive(lose_lease_in_restore(database, then), since)


def test_a_settlement_beyond_the_end_of_the_log_is_refused(database: Database) -> None:
    courier = lose_lease_in_restore(database, lambda: None)
    since = [event("b") for _ in range(3)]
    Log(database).append([since])
    assert_all_arrive(courier, since)


def test_a_claim_that_finds_the_log_shorter_begins_a_new_epoch(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    target = add_target(database)
    courier = Courier(database, target)
    before = read_epoch(database)
    with older_state(database):
        Log(database).append([[event("b"), event("b")]])
        courier.run()
        assert read_epoch(database) == before
    since = [event("b")]
    Log(database).append([since])
    assert_all_arrive(courier, since)
    assert read_epoch(database) != before
    assert "may be an older state of itself: the event log ends at 1, but event 2 had been recorded" in caplog.text
    [entry] = entries(database, AuditFilter(actions=("log.new_epoch",)), limit=9)
    assert entry.details["last_seq"] == 1


@databases.THREE
def test_a_shorter_log_has_a_new_epoch_also_where_nobody_claims_anything(database: Database) -> None:
    """Where nobody claims anything, nobody else notices that the outbox is an older state of itself."""
    idle = add_target(database, "idle", bucket="none")
    add_target(database, "busy", bucket="images")
    before, leases = read_epoch(database), Leases(database, 6_000)
    with older_state(database):
        Log(database).append([[event("a") for _ in range(3)]])
        leases.check_epoch()
        assert read_epoch(database) == before
    since = [event("a")]
    Log(database).append([since], only_target=idle)
    leases.check_epoch()
    assert read_epoch(database) != before
    assert_all_arrive(Courier(database, idle), since)


def test_a_target_whose_events_are_at_the_places_of_lost_ones_of_others_is_found_by_the_drain(
    database: Database,
) -> None:
    rare = add_target(database, "rare", bucket="rare")
    add_target(database, "busy", bucket="images")
    work = DueWork(database)
    with older_state(database):
        Log(database).append([[event("lost") for _ in range(3)]])
        assert rare not in {due.target for due in work.find(now_ms())}
    for bucket in ("rare", "images", "images", "images"):
        Log(database).append([[event(bucket=bucket)]])
    begin_epoch(database)
    assert rare in {due.target for due in work.find(now_ms())}


def test_rules_changed_after_a_restore_are_read_again(database: Database) -> None:
    """A counter would have the same value after one change of the older state as after the one that is lost."""
    first = add_target(database, "first", bucket="none")
    log = Log(database)
    log.append([[event()]])
    with older_state(database):
        registry(database).add_rule(Rule(bucket="*", events=("*",), target=first))
        log.append([[event()]])
    registry(database).put(TargetId("webhook", "second"), {"endpoint": "http://127.0.0.1:9/"})
    log.append([[event()]])
    with database.reading() as connection:
        recorded = connection.execute(sa.select(tables.targets.c.recorded).where(tables.targets.c.name == "first"))
        assert recorded.scalar_one() == 0


def read_epoch(database: Database) -> str:
    with database.reading() as connection:
        return str(connection.execute(sa.select(tables.log_head.c.epoch)).scalar_one())


def assert_all_arrive(courier: Courier, events: Sequence[Event]) -> None:
    """A worker that claims what is free later delivers every one of these events."""
    courier.scripted.got.clear()
    courier.run(now=now_ms() + 2 * courier.lease_ms)
    assert [one.id for one in courier.scripted.got] == [one.id for one in events]
    assert_counters_balance(courier.database)


@databases.THREE
def test_the_end_of_the_log_is_not_that_of_another_epoch(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failover between two statements must not let a reader pass what the older state records next."""
    Log(database).append([[event("kept")]])
    read, failed_over = log_head.read, False

    def then_fail_over(connection: sa.Connection) -> log_head.LogHead:
        nonlocal failed_over
        head = read(connection)
        if not failed_over:
            failed_over = True
            head = head._replace(last_seq=head.last_seq + 5)  # of the server that is lost
            with database.writing() as writer:
                log_head.begin_epoch(writer, "failover")
        return head

    monkeypatch.setattr(log_head, "read", then_fail_over)
    head, state = log_state(database)
    with database.reading() as connection:
        assert (head.last_seq, state) == (read(connection).last_seq, log_head.read_state(connection))
