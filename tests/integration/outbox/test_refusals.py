"""A target that refuses one object ("unavailable") and takes others; and one that refuses everything for a while."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

import pytest
import sqlalchemy as sa

from app.events.model import Event
from app.outbox import tables
from app.outbox.admin.counters import read_counters
from app.outbox.admin.undelivered import DeadLetters
from app.outbox.engine.database import Database
from app.outbox.log.append import Log, key_hash
from app.resources.undelivered import DeadLetter, DeadLetterFilter
from tests.support import databases
from tests.support.builders import add_target, event, registry
from tests.support.delivery import Delivery, delivery
from tests.support.scripted_target import Courier, ScriptedTarget, assert_counters_balance, assert_in_order
from workers.delivery.namespace_policy import Policy
from workers.delivery.outcomes import DELIVERED, Failed, Outcome, Rejected, Unavailable
from workers.delivery.retry import RetrySchedule
from workers.targets.base import NO_LEASE, LeaseCheck

pytestmark = databases.TWO

NIGHTLY = pytest.mark.nightly(
    "one and two refused objects alone in a partition, and twelve in all partitions, with others"
)

PARTITIONS = 4
SCHEDULE = RetrySchedule(base=1, cap=20, max_attempts=3, max_age=0)
REFUSED = Unavailable("503")


@pytest.fixture
def at_work(database: Database, outbox_url: str, tmp_path: Path) -> Iterator[Delivery]:
    with delivery(outbox_url, tmp_path) as made:
        yield made


def keys(partition: int, count: int, name: str) -> list[str]:
    """Names of objects that have their place in this partition."""
    found: list[str] = []
    number = 0
    while len(found) < count:
        key = f"{name}-{number}"
        if key_hash("images", key) % PARTITIONS == partition:
            found.append(key)
        number += 1
    return found


def spread(count: int) -> list[str]:
    """Names of objects in every partition."""
    return [key for each in range(PARTITIONS) for key in keys(each, count // PARTITIONS, "healthy")]


def record(database: Database, names: list[str]) -> list[Event]:
    events = [event(name) for name in names]
    Log(database).append([events])
    return events


def refusing(*names: str, outcome: Outcome = REFUSED) -> ScriptedTarget:
    return ScriptedTarget(lambda one: outcome if one.key in names else DELIVERED)


class CountingTarget(ScriptedTarget):
    """Counts the calls."""

    calls = 0

    def deliver(self, events: Sequence[Event], window: int, lease: LeaseCheck = NO_LEASE) -> list[Outcome]:
        """Answer by the script."""
        self.calls += 1
        return super().deliver(events, window, lease)


@databases.ONE
def test_no_second_opinion_is_asked_for_when_the_lease_is_to_end(database: Database) -> None:
    target = CountingTarget(lambda one: REFUSED if one.key == "a" else DELIVERED)
    courier = Courier(database, add_target(database), target)
    record(database, ["a", "b", "c"])
    partitions = courier.partitions()
    assert partitions is not None
    partitions.work_off(lambda: True)
    assert target.calls == 1


def letters(database: Database) -> list[DeadLetter]:
    return DeadLetters(database).list(DeadLetterFilter())


def attempts(database: Database) -> list[int]:
    with database.reading() as connection:
        return list(connection.execute(sa.select(tables.parked.c.attempts)).scalars())


_TIMES = count(1)  # ms, all past


def end_wait(database: Database) -> None:
    """Let the breaker's next probe come now, at a time of its own: what is unchanged the drain announces later."""
    with database.writing() as connection:
        connection.execute(tables.targets.update().values(resume_at=next(_TIMES)))


def is_settled(database: Database) -> bool:
    with database.reading() as connection:
        [counters] = read_counters(connection)
    return counters.pending == counters.parked == 0


def assert_all_but_the_refused_arrive(
    database: Database, at_work: Delivery, poison: list[str], names: list[str], *, batch: int = 16
) -> None:
    """The healthy ones at once, and the refused ones die as others keep passing."""
    add_target(database)
    events = record(database, poison + names + poison)
    target = refusing(*poison)
    at_work.serve(target, SCHEDULE, batch=batch)
    at_work.until(lambda: len(target.got) == len(names), what="every healthy event delivered")
    more: list[Event] = []

    def dead() -> bool:
        # A target that takes nothing else could just as well be down.
        more.extend(record(database, [f"later-{len(more)}-{number}" for number in range(4)]))
        return len(letters(database)) == 2 * len(poison)

    at_work.until(dead, what="the refused events dead")
    at_work.until(lambda: is_settled(database), what="everything settled")
    assert {(letter.attempts, letter.reason) for letter in letters(database)} == {(3, "503")}
    assert_in_order(events + more, target.got, never=[one for one in events if one.key in poison])
    assert len(target.got) == len(names) + len(more), "something was delivered twice"
    assert_counters_balance(database)


@NIGHTLY
def test_one_refused_object_at_the_head_of_the_lowest_partition_holds_up_nobody(
    database: Database, at_work: Delivery
) -> None:
    assert_all_but_the_refused_arrive(database, at_work, keys(0, 1, "refused"), spread(200))


def test_one_refused_object_alone_in_its_partition_holds_up_no_other_partition(
    database: Database, at_work: Delivery
) -> None:
    healthy = [key for partition in range(1, PARTITIONS) for key in keys(partition, 50, "healthy")]
    assert_all_but_the_refused_arrive(database, at_work, keys(0, 1, "refused"), healthy)


@NIGHTLY
def test_two_refused_objects_in_one_partition_hold_up_nobody(database: Database, at_work: Delivery) -> None:
    assert_all_but_the_refused_arrive(database, at_work, keys(0, 2, "refused"), spread(100))


@databases.ONE
def test_two_refused_objects_alone_in_one_partition_hold_up_nobody(database: Database, at_work: Delivery) -> None:
    assert_all_but_the_refused_arrive(database, at_work, keys(0, 2, "refused"), keys(1, 60, "healthy"))


@databases.ONE
def test_many_refused_objects_in_every_partition_hold_up_nobody(database: Database, at_work: Delivery) -> None:
    """There are more of them than a batch has events."""
    poison = [key for partition in range(PARTITIONS) for key in keys(partition, 3, "refused")]
    assert_all_but_the_refused_arrive(database, at_work, poison, spread(60), batch=8)


def test_a_call_that_is_refused_as_a_whole_is_narrowed_down_to_the_event_at_fault(
    database: Database, at_work: Delivery
) -> None:
    """As a SQL target answers that one of many rows made it wait too long: nobody knows which."""

    class AllOrNothing(ScriptedTarget):
        def deliver(self, events: Sequence[Event], window: int, lease: LeaseCheck = NO_LEASE) -> list[Outcome]:
            if any(one.key == poison for one in events):
                return [Unavailable("a lock was not had in time")] * len(events)
            return super().deliver(events, window, lease)

    add_target(database)
    [poison] = keys(0, 1, "refused")
    healthy = spread(200)
    events = record(database, [*healthy[:20], poison, *healthy[20:]])
    target = AllOrNothing()
    at_work.serve(target, SCHEDULE, batch=200)
    at_work.until(lambda: len(target.got) == len(healthy), what="every healthy event delivered")
    assert_in_order(events, target.got, never=[one for one in events if one.key == poison])
    assert_counters_balance(database)


@databases.THREE
@pytest.mark.parametrize("set_back", [0, pytest.param(3_600_000, marks=databases.ONE)], ids=["", "clock set back"])
def test_an_outage_costs_no_attempt_and_is_over_when_it_is_over(
    database: Database, at_work: Delivery, set_back: int
) -> None:
    add_target(database)
    events = record(database, spread(40))
    target = ScriptedTarget()
    at_work.serve(target, SCHEDULE)
    at_work.until(lambda: is_settled(database))
    with database.writing() as connection:  # what was delivered before the clock was set back was so in the future
        connection.execute(tables.cursors.update().values(delivered_at=tables.cursors.c.delivered_at + set_back))
    events += record(database, spread(40))
    down = ScriptedTarget(lambda one: REFUSED)
    at_work.serve(down, SCHEDULE)
    looks = turns = 0
    while looks <= 10 and (turns := turns + 1) < 150:  # many more looks than max_attempts
        looks += len(at_work.turn())
        end_wait(database)
        assert set(attempts(database)) <= {0}
        assert len(attempts(database)) <= PARTITIONS, (
            "a target that is down needs no more than a suspect in each partition"
        )
        assert letters(database) == []
    assert looks > 10
    assert_counters_balance(database)
    events += record(database, spread(40))
    at_work.serve(target, SCHEDULE)
    at_work.until(lambda: is_settled(database), 30)
    assert_in_order(events, target.got)
    assert len(target.got) == len(events)
    assert_counters_balance(database)


def test_an_outage_costs_objects_that_failed_before_no_attempt_either(database: Database, at_work: Delivery) -> None:
    add_target(database)
    failing = keys(0, 3, "failing")
    record(database, failing)
    at_work.serve(
        refusing(*failing, outcome=Failed("500")), RetrySchedule(base=200, cap=200, max_attempts=50, max_age=0)
    )
    at_work.turn()
    at_work.until(lambda: min(attempts(database), default=0) > 0)
    record(database, keys(1, 1, "healthy"))
    at_work.until(lambda: len(attempts(database)) == len(failing))
    before = sorted(attempts(database))
    at_work.serve(ScriptedTarget(lambda one: REFUSED), SCHEDULE)
    for _ in range(20):
        at_work.turn()
        end_wait(database)
    assert sorted(attempts(database)) == before
    assert_counters_balance(database)


def test_a_short_refusal_of_everything_costs_no_attempt(database: Database, at_work: Delivery) -> None:
    """`max_attempts=1`: a single counted attempt would be a dead letter."""
    add_target(database)
    events = record(database, spread(80))
    answers = iter([True] * 3 + [False] * 5 + [True] * 30 + [False] * 3)
    target = ScriptedTarget(lambda one: DELIVERED if next(answers, True) else REFUSED)
    at_work.serve(target, RetrySchedule(base=1, cap=1, max_attempts=1, max_age=0))
    at_work.until(lambda: is_settled(database), 30)
    assert letters(database) == []
    assert_in_order(events, target.got)
    assert_counters_balance(database)


def test_gone_for_one_object_does_not_pause_a_target_that_takes_others(database: Database, at_work: Delivery) -> None:
    target_id = add_target(database)
    poison = keys(0, 1, "gone")
    record(database, poison + keys(1, 20, "healthy"))
    target = refusing(*poison, outcome=Unavailable("410", pause=True))
    at_work.serve(target, SCHEDULE)
    at_work.until(lambda: len(target.got) == 20, what="every healthy event delivered")
    later = 0

    def dead() -> bool:
        nonlocal later
        record(database, keys(1, 1, f"later-{(later := later + 1)}"))
        return len(letters(database)) == 1

    at_work.until(dead)
    assert not registry(database).target(target_id).paused


@pytest.mark.parametrize("count", [pytest.param(2, marks=databases.ONE), pytest.param(5, marks=databases.THREE)])
def test_gone_for_everything_pauses_the_target(database: Database, at_work: Delivery, count: int) -> None:
    target_id = add_target(database)
    record(database, [*keys(0, 1, "gone"), *keys(1, count - 1, "gone")])
    at_work.serve(ScriptedTarget(lambda one: Unavailable("410", pause=True)), SCHEDULE)
    at_work.until(lambda: registry(database).target(target_id).paused, what="the target paused")
    assert set(attempts(database)) <= {0}


def test_one_objects_retry_after_holds_up_no_other_object(database: Database, at_work: Delivery) -> None:
    add_target(database)
    poison = keys(0, 1, "refused")
    record(database, poison)
    target = refusing(*poison, outcome=Unavailable("429", retry_after=600))
    at_work.serve(target, SCHEDULE)
    at_work.turn()
    record(database, spread(8))
    at_work.until(lambda: len(target.got) == 8, 30, what="every healthy event delivered")


def test_a_retry_that_is_refused_beside_one_that_is_superseded_is_parked_again(database: Database) -> None:
    courier = Courier(database, add_target(database), policy=Policy.MIRROR)
    record(database, ["a", "b"])
    courier.scripted.script = lambda _: Failed("later")
    courier.run(turns=1)
    record(database, ["a"])
    courier.scripted.script = lambda one: REFUSED if one.key == "b" else DELIVERED
    courier.run(turns=1)
    assert courier.scripted.keys() == ["a"]
    courier.scripted.script = lambda _: DELIVERED
    with database.writing() as connection:
        connection.execute(tables.parked.update().values(not_before=0))
    courier.run()
    assert courier.scripted.keys() == ["a", "b"]
    assert_counters_balance(database)


@pytest.mark.parametrize("names", [1, 8])
def test_an_answer_to_earlier_settings_delays_no_attempt_with_the_new_ones(
    database: Database, at_work: Delivery, names: int
) -> None:
    """Of one object, which is parked, and of the target, whose circuit breaker opens and which is paused."""
    target_id = add_target(database)
    record(database, spread(8)[:names])
    targets = registry(database)

    def changed_meanwhile(_: Event) -> Outcome:
        targets.put(target_id, {"endpoint": "http://127.0.0.1:10/"})
        target.script = lambda _: DELIVERED
        return Unavailable("410", retry_after=900, pause=True)

    target = ScriptedTarget(changed_meanwhile)
    at_work.serve(target, SCHEDULE)
    at_work.until(lambda: len(target.got) == names, what="every event delivered")
    assert targets.target(target_id).state == "running"
    assert_counters_balance(database)


def test_a_target_that_is_back_is_available_also_if_it_rejects_what_it_is_sent(
    database: Database, at_work: Delivery
) -> None:
    target_id, targets = add_target(database), registry(database)
    record(database, spread(8))
    target = ScriptedTarget(lambda _: Unavailable("connection refused", unreachable=True))
    at_work.serve(target, SCHEDULE)
    at_work.until(lambda: targets.target(target_id).state == "unavailable", 30)
    target.script = lambda _: Rejected("400")
    at_work.until(lambda: is_settled(database), 30, what="everything settled")
    assert targets.target(target_id).state == "running"
