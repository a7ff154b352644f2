"""A target of which every attempt fails is failing, from the fifth attempt to the next success, whatever the clocks."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox import tables
from app.outbox.admin.counters import read_status
from app.outbox.admin.event_states import FAILED, Attempt, record_attempts
from app.outbox.declared import StoredTarget
from app.outbox.delivery.availability import open_breaker
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from tests.support import databases
from tests.support.builders import add_target, event, registry
from tests.support.scripted_target import Courier, ScriptedTarget, assert_counters_balance
from workers.delivery.namespace_policy import Policy
from workers.delivery.outcomes import DELIVERED, Failed, Outcome, Rejected
from workers.delivery.retry import RetrySchedule

pytestmark = databases.TWO

FAILS = Failed("HTTP 500")
LATER = RetrySchedule(base=10**11, cap=10**11, max_age=0)  # the wait is random: no retry in the time of a test


def deliver(database: Database, target: TargetId, *names: str, outcome: Outcome = FAILS) -> None:
    """Record events and attempt each once, by one worker after another."""
    for name in names:
        Log(database).append([[event(name)]])
        Courier(database, target, ScriptedTarget(lambda _: outcome), schedule=LATER).run()


def stored(database: Database, target: TargetId) -> StoredTarget:
    with database.snapshot() as connection:
        [status] = read_status(connection, target)
    return status.stored


def test_the_fifth_failure_without_a_success_makes_a_target_failing_and_the_next_success_ends_it(
    database: Database,
) -> None:
    target, other = add_target(database, "audit"), add_target(database, "other", bucket="none")
    deliver(database, target, *"abcd")
    assert stored(database, target).state == "running"
    deliver(database, target, "e", outcome=Rejected("HTTP 400"))
    failing = stored(database, target)
    assert (failing.state, failing.failing and failing.failing.attempts) == ("failing", 5)
    assert failing.state_reason == "all 5 attempts since its last success failed"
    assert stored(database, other).state == "running"
    with database.snapshot() as connection:
        assert {str(one.stored.target): one.stored.state for one in read_status(connection)} == {
            "webhook:audit": "failing",
            "webhook:other": "running",
        }
    deliver(database, target, "f", outcome=DELIVERED)
    assert stored(database, target).state == "running"
    deliver(database, target, *"ghij")
    assert stored(database, target).state == "running", "only what came after the success counts"
    deliver(database, target, "k")
    assert stored(database, target).state == "failing"
    assert_counters_balance(database)


@databases.ONE
def test_one_object_that_fails_beside_others_that_arrive_makes_no_target_failing(database: Database) -> None:
    target = add_target(database, "audit")
    for number in range(8):
        deliver(database, target, f"bad-{number}")
        deliver(database, target, f"good-{number}", outcome=DELIVERED)
    assert stored(database, target).state == "running"


def test_failures_of_one_batch_count_and_a_success_among_them_ends_the_count(database: Database) -> None:
    target = add_target(database, "audit")
    Log(database).append([[event(f"a{number}") for number in range(7)]])
    Courier(database, target, ScriptedTarget(lambda _: Rejected("no"))).run()
    assert stored(database, target).state == "failing"
    Log(database).append([[event(f"b{number}") for number in range(9)]])
    mixed = ScriptedTarget(lambda one: DELIVERED if one.key == "b4" else Rejected("no"))
    Courier(database, target, mixed).run()
    assert stored(database, target).state == "running"


@databases.THREE
def test_an_event_that_is_not_sent_because_it_changes_nothing_is_no_success(database: Database) -> None:
    mirror = add_target(database, "rows")
    refusing = Courier(database, mirror, ScriptedTarget(lambda _: FAILS), policy=Policy.MIRROR, schedule=LATER)
    for number in range(6):
        Log(database).append([[event(f"k{number}"), event("other", name="s3:ObjectAccessed:Get")]])
        refusing.run()
    failing = stored(database, mirror)
    assert (failing.state, failing.failing and failing.failing.attempts) == ("failing", 6)
    Log(database).append([[event("other", name="s3:ObjectAccessed:Get")]])
    refusing.run()
    assert stored(database, mirror).state == "failing"
    Log(database).append([[event("k")]])
    Courier(database, mirror, policy=Policy.MIRROR, schedule=LATER).run()
    assert stored(database, mirror).state == "running"


@pytest.mark.parametrize("again", ["set", pytest.param("resumed", marks=databases.ONE)])
def test_new_settings_and_a_resume_begin_the_count_again(database: Database, again: str) -> None:
    target = add_target(database, "audit")
    deliver(database, target, *"abcdef")
    assert stored(database, target).state == "failing"
    if again == "set":
        registry(database).put(target, {"endpoint": "http://127.0.0.1:1/new"})
    else:
        registry(database).resume(target)
    assert stored(database, target).state == "running"
    deliver(database, target, *"ghij")
    assert stored(database, target).state == "running"
    deliver(database, target, "k")
    assert stored(database, target).state == "failing"


@databases.ONE
def test_what_stops_a_target_is_said_rather_than_that_it_fails(database: Database) -> None:
    target = add_target(database, "audit")
    deliver(database, target, *"abcde")
    open_breaker(database, stored(database, target).row_id, "refused", 1, probing=False)
    assert (stored(database, target).state, stored(database, target).state_reason) == ("unavailable", "refused")
    registry(database).pause(target, "by me")
    assert (stored(database, target).state, stored(database, target).state_reason) == ("paused", "by me")


def test_a_worker_whose_clock_is_behind_counts_and_ends_the_count_too(database: Database) -> None:
    target = add_target(database, "audit")
    deliver(database, target, "a", outcome=DELIVERED)
    for name in "bcdef":
        Log(database).append([[event(name)]])
        Courier(database, target, ScriptedTarget(lambda _: FAILS), schedule=LATER, clock=lambda: 1_000_000).run()
    assert stored(database, target).state == "failing"
    Log(database).append([[event("g")]])
    Courier(database, target, ScriptedTarget(), schedule=LATER, clock=lambda: 500_000).run()
    assert stored(database, target).state == "running"


@databases.ONE
def test_the_last_recorded_reason_is_shown(database: Database) -> None:
    target = add_target(database, "audit")
    deliver(database, target, *"abcde")
    row_id = stored(database, target).row_id
    with database.writing() as connection:
        record_attempts(connection, [Attempt(row_id, 0, seq, seq, 1, FAILED, reason=f"HTTP {seq}") for seq in (1, 2)])
    assert stored(database, target).state_reason == "all 5 attempts since its last success failed; the last: HTTP 2"


def test_a_delivery_writes_nothing_for_it(database: Database) -> None:
    target = add_target(database, "audit")
    deliver(database, target, *"abcde")
    columns = [tables.cursors.c[name] for name in ("partition", "failed_in_row", "failed_since", "failed_mark")]
    with database.reading() as connection:
        before = connection.execute(sa.select(*columns)).all()
    Log(database).append([[event("f")]])
    Courier(database, target, schedule=LATER).run()
    assert stored(database, target).state == "running"
    with database.reading() as connection:
        assert connection.execute(sa.select(*columns)).all() == before
