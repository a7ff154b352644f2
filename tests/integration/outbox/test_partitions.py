"""Delivering: per object in order, failing events aside, nothing lost, counters balanced."""

import contextlib
from random import Random

import pytest
import sqlalchemy as sa

from app.events.model import Event
from app.outbox import tables
from app.outbox.admin.counters import read_counters
from app.outbox.admin.replays import Replays, Selection
from app.outbox.admin.undelivered import DeadLetters
from app.outbox.delivery.due_work import DueWork
from app.outbox.delivery.leases import Lease, LeaseLost
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log
from app.resources.undelivered import DeadLetterFilter
from tests.services import until
from tests.support import databases
from tests.support.builders import DELETE, add_target, event, registry
from tests.support.properties import times
from tests.support.scripted_target import Courier, ScriptedTarget, assert_counters_balance, assert_in_order, sometimes
from workers.delivery.namespace_policy import Policy
from workers.delivery.outcomes import DELIVERED, Failed, Outcome, Rejected, Unavailable
from workers.delivery.retry import RetrySchedule

pytestmark = [pytest.mark.promise, databases.TWO]


def record(database: Database, *events: Event) -> list[Event]:
    Log(database).append([events])
    return list(events)


def _counts(database: Database, table: sa.Table) -> int:
    with database.reading() as connection:
        return int(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())


def test_every_event_arrives_once_and_in_order(database: Database) -> None:
    courier = Courier(database, add_target(database))
    events = record(database, *(event(f"k{number % 9}") for number in range(95)))
    tally = courier.run()
    assert tally.counts == {"delivered": 95}
    assert_in_order(events, courier.scripted.got)
    assert len(courier.scripted.got) == 95
    assert courier.run().counts == {}
    assert_counters_balance(database)


@pytest.mark.parametrize("moment", ["before_cursor_execute", "after_cursor_execute"])
def test_an_event_recorded_while_a_batch_is_being_read_is_delivered_once(database: Database, moment: str) -> None:
    courier = Courier(database, add_target(database), batch=100)
    events = record(database, event("k"))
    late = [event("k")]

    def meanwhile(_: object, cursor: object, statement: str, *rest: object) -> None:
        if "events.record" in statement and late:
            events.extend(record(database, late.pop()))

    sa.event.listen(database._reader, moment, meanwhile)
    assert courier.run().counts == {"delivered": 2}
    assert_in_order(events, courier.scripted.got)
    assert_counters_balance(database)


def test_a_failing_event_holds_up_its_own_object_only(database: Database) -> None:
    courier = Courier(database, add_target(database), schedule=RetrySchedule(base=3_600_000, cap=3_600_000))
    first, second = event("bad"), event("bad")
    record(database, event("a"), first, event("b"), second, event("c"))
    courier.scripted.script = lambda one: Failed("no") if one.id == first.id else DELIVERED
    assert courier.run().counts == {"delivered": 3, "parked": 2}
    assert sorted(courier.scripted.keys()) == ["a", "b", "c"]
    assert_counters_balance(database)
    courier.scripted.script = lambda one: DELIVERED
    late = Courier(database, courier.target, courier.scripted)
    partitions = late.partitions()
    assert partitions is not None
    partitions._clock = lambda: now_ms() + 3_600_001
    assert partitions.work_off(lambda: False).counts == {"delivered": 2}
    assert [one.id for one in courier.scripted.got[3:]] == [first.id, second.id]
    assert _counts(database, tables.parked) == 0
    assert_counters_balance(database)


def test_an_event_that_keeps_failing_dies_with_its_history_and_the_next_of_its_object_goes_on(
    database: Database,
) -> None:
    courier = Courier(database, add_target(database), schedule=RetrySchedule(base=0, cap=0, max_attempts=3))
    bad, good = event("k"), event("k")
    record(database, bad, good)
    courier.scripted.script = lambda one: Failed("the remote's words") if one.id == bad.id else DELIVERED
    courier.run()
    assert [one.id for one in courier.scripted.got] == [good.id]
    [letter] = DeadLetters(database).list(DeadLetterFilter())
    assert (letter.event_id, letter.attempts, letter.reason) == (bad.id, 3, "the remote's words")
    assert [attempt.reason for attempt in letter.history] == ["the remote's words"] * 3
    assert_counters_balance(database)


@databases.THREE
def test_a_rejected_event_dies_at_once_and_is_delivered_when_it_is_replayed(database: Database) -> None:
    courier = Courier(database, add_target(database))
    poison = event("k")
    record(database, poison, event("k"))
    courier.scripted.script = lambda one: Rejected("400 no such field") if one.id == poison.id else DELIVERED
    assert courier.run().counts == {"dead": 1, "delivered": 1}
    letters = DeadLetters(database)
    assert letters.list(DeadLetterFilter(reason="no such"))[0].attempts == 1
    courier.scripted.script = lambda one: DELIVERED
    assert letters.replay(DeadLetterFilter(target=courier.target)) == 1
    assert_counters_balance(database)
    assert courier.run().counts == {"delivered": 1}
    assert courier.scripted.got[-1].id == poison.id
    assert letters.list(DeadLetterFilter()) == []
    assert_counters_balance(database)


def test_a_purged_dead_letter_is_counted(database: Database) -> None:
    courier = Courier(database, add_target(database), ScriptedTarget(lambda one: Rejected("never")))
    record(database, event(), event())
    courier.run()
    assert DeadLetters(database).purge(DeadLetterFilter()) == 2
    with database.reading() as connection:
        [counters] = read_counters(connection)
    assert (counters.recorded, counters.purged, counters.dead, counters.pending) == (2, 2, 0, 0)
    assert_counters_balance(database)


def test_an_unavailable_target_costs_its_events_no_attempt_and_no_place(database: Database) -> None:
    unreachable = Unavailable("connection refused", unreachable=True)
    courier = Courier(database, add_target(database), ScriptedTarget(lambda one: unreachable))
    events = record(database, *(event(f"k{number}") for number in range(20)))
    for _ in range(30):
        assert courier.run().unavailable == unreachable
    assert _counts(database, tables.parked) == 0
    assert_counters_balance(database)
    courier.scripted.script = lambda one: DELIVERED
    assert courier.run().counts == {"delivered": 20}
    assert_in_order(events, courier.scripted.got)


def test_what_a_dying_target_took_out_of_turn_is_not_sent_twice(database: Database) -> None:
    courier = Courier(database, add_target(database))
    events = record(database, *(event(f"k{number}") for number in range(12)))
    missed = {one.id for one in events[::3]}
    courier.scripted.script = lambda one: Unavailable("reset") if one.id in missed else DELIVERED
    courier.run()
    courier.scripted.script = lambda one: DELIVERED
    until(lambda: courier.run() and not _counts(database, tables.parked))
    assert sorted(one.id for one in courier.scripted.got) == sorted(one.id for one in events)
    assert_counters_balance(database)


def test_an_unexpected_error_of_an_adapter_counts_against_its_events_and_loses_none(database: Database) -> None:
    courier = Courier(database, add_target(database), schedule=RetrySchedule(base=0, cap=0, max_attempts=2))

    def broken(_: Event) -> Outcome:
        raise ZeroDivisionError

    courier.scripted.script = broken
    record(database, event("a"), event("b"))
    assert courier.run().counts["dead"] == 2
    assert DeadLetters(database).list(DeadLetterFilter())[0].reason == "unexpected ZeroDivisionError"
    assert_counters_balance(database)


@databases.ONE
def test_an_unexpected_error_while_a_target_is_opened_costs_no_event_an_attempt(database: Database) -> None:
    courier = Courier(database, add_target(database), schedule=RetrySchedule(base=0, cap=0, max_attempts=1))

    class Broken(ScriptedTarget):
        def open(self) -> None:
            raise ZeroDivisionError

    scripted, courier.scripted = courier.scripted, Broken()
    events = record(database, event("a"), event("b"))
    for _ in range(3):
        courier.run()
    assert not _counts(database, tables.dead_letters)
    courier.scripted = scripted
    until(lambda: courier.run() and len(courier.scripted.got) == len(events))
    assert_counters_balance(database)


def test_a_worker_that_lost_its_lease_writes_nothing(database: Database) -> None:
    courier = Courier(database, add_target(database))
    record(database, event())
    slow = courier.partitions()
    assert slow is not None
    lapsed = now_ms() + 60_000
    other = courier.leases.claim(registry(database).target(courier.target).row_id, range(4), "other", lapsed)
    assert isinstance(other, Lease)
    with pytest.raises(LeaseLost):
        slow.work_off(lambda: False)
    with database.reading() as connection:
        assert read_counters(connection)[0].delivered == 0
    assert_counters_balance(database)


def test_a_worker_that_lost_one_of_its_partitions_writes_nothing_in_any(database: Database) -> None:
    courier = Courier(database, add_target(database), batch=100)
    record(database, *(event(f"k{number}") for number in range(40)))
    slow, c = courier.partitions(), tables.cursors.c
    assert slow is not None
    assert slow._lease.positions.keys() == set(range(4))
    before = select_cursors(database)
    with database.writing() as connection:
        connection.execute(tables.cursors.update().where(c.partition == 2).values(lease_token="other"))
    with pytest.raises(LeaseLost):
        slow.work_off(lambda: False)
    assert len(courier.scripted.got) == 40, "every partition had some of them"
    assert select_cursors(database) == before
    assert_counters_balance(database)


def select_cursors(database: Database) -> list[tuple[int, int, int]]:
    """Partition, position and delivered events of each cursor."""
    c = tables.cursors.c
    with database.reading() as connection:
        rows = connection.execute(sa.select(c.partition, c.position, c.delivered).order_by(c.partition))
        return [tuple(row) for row in rows]


def test_a_mirror_skips_what_is_older_than_what_is_known(database: Database) -> None:
    courier = Courier(database, add_target(database), policy=Policy.MIRROR)
    old = event("k", sequencer="18E9E833E5D35CED")
    new = event("k", name=DELETE, sequencer="18E9E833E5D35CEE")
    access = event("k", name="s3:ObjectAccessed:Head", sequencer="18E9E833E5D35CED")
    record(database, new, old, access)
    assert courier.run().counts == {"delivered": 2, "superseded": 1}
    assert [one.name for one in courier.scripted.got] == [DELETE]
    record(database, event("k", sequencer="18E9E833E5D35CEC"))
    assert courier.run().counts == {"superseded": 1}
    assert_counters_balance(database)


def test_delivered_events_are_replayed_in_order_and_before_newer_ones(database: Database) -> None:
    courier = Courier(database, add_target(database))
    first = record(database, *(event(f"k{number % 3}") for number in range(12)))
    courier.run()
    Replays(database).begin(courier.target, Selection(prefix="k1"))
    later = record(database, *(event(f"k{number % 3}") for number in range(6)))
    assert_counters_balance(database)
    courier.scripted.got.clear()
    assert courier.run().counts == {"delivered": 10}
    again = [one for one in first if one.key == "k1"]
    got = [one.id for one in courier.scripted.got if one.key == "k1"]
    assert got == [one.id for one in again] + [one.id for one in later if one.key == "k1"]
    [replay] = Replays(database).list()
    assert (replay.replayed, replay.finished) == (4, True)
    assert_counters_balance(database)


def test_a_replay_begun_while_a_worker_is_at_it_takes_the_partition_from_it(database: Database) -> None:
    courier = Courier(database, add_target(database))
    record(database, event("k"))
    courier.run()
    record(database, event("k"))
    busy = courier.partitions()
    assert busy is not None
    Replays(database).begin(courier.target, Selection())
    with pytest.raises(LeaseLost):
        busy.work_off(lambda: False)
    assert DueWork(database).find(now_ms()) == []
    assert courier.partitions(now_ms() + 10_001) is not None


@databases.ALL
@pytest.mark.parametrize("seed", range(times(1, 3)))
def test_whatever_a_target_answers_nothing_is_lost_and_every_object_stays_in_order(
    database: Database, seed: int
) -> None:
    rng = Random(seed)
    courier = Courier(database, add_target(database), schedule=RetrySchedule(base=0, cap=0, max_attempts=10**6))
    courier.batch = 7
    everything: list[Event] = []
    for _ in range(times(6, 12)):
        everything += record(database, *(event(f"k{rng.randrange(6)}") for _ in range(rng.randrange(30))))
        courier.scripted.script = sometimes(
            rng, fail=(0.1, Failed("perhaps later")), away=(0.1 * rng.random(), Unavailable("away"))
        )
        partitions = courier.partitions()
        assert partitions is not None
        turns = iter(range(rng.randrange(8)))
        if rng.random() < 0.3:  # this worker dies between delivering and settling
            partitions._settle = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign]
        with contextlib.suppress(KeyboardInterrupt):
            partitions.work_off(lambda turns=turns: next(turns, None) is None)  # type: ignore[misc]
        courier.leases.release(partitions._lease)
        assert_counters_balance(database)
    courier.scripted.script = lambda one: DELIVERED

    def is_done() -> bool:
        courier.run(turns=1000)
        return _counts(database, tables.parked) == 0

    until(is_done, 30, what="what was refused is due again, and delivered")
    assert_in_order(everything, courier.scripted.got)
    assert_counters_balance(database)
