"""Parked events: one head for each object, and back-off that nothing bypasses."""

from collections import Counter
from pathlib import Path

import pytest
import sqlalchemy as sa

from app.config.settings import Settings
from app.events.model import Event
from app.outbox import models as m
from app.outbox.append import Log
from app.outbox.database import Database, now_ms
from app.outbox.dead_letters import DeadLetters, Filter
from app.outbox.leases import Lease, Offer
from app.outbox.parked import HeadRepair, restore_heads
from app.outbox.replays import Replays, Selection
from tests.builders import add_target, event
from tests.integration.outbox.parked_rows import assert_each_object_has_one_head, due_times, parked_rows
from tests.integration.outbox.scripted import Courier, Scripted, assert_balanced
from workers.context import Context
from workers.outcomes import DELIVERED, Failed, Outcome, Unavailable
from workers.retry import RetrySchedule

HOUR = 3_600_000


def record(database: Database, *events: Event) -> list[Event]:
    Log(database).append([events])
    return list(events)


def work(courier: Courier, now: int, *, turns: int) -> Counter[str]:
    """Work off what is due when the clock shows `now` (ms)."""
    lanes = courier.lanes()
    assert lanes is not None
    lanes._clock = lambda: now
    left = iter(range(turns))
    counts = lanes.work_off(lambda: next(left, None) is None).counts
    courier.leases.release(lanes._lease)
    return counts


def answering(outcomes: dict[str, Outcome]) -> Scripted:
    """A target that answers these events, by their ids, and takes every other one."""
    return Scripted(lambda one: outcomes.get(one.id, DELIVERED))


@pytest.mark.parametrize("schedule", [RetrySchedule(max_attempts=1), RetrySchedule(max_age=1)])
@pytest.mark.parametrize("others", [0, 5])
def test_what_waits_behind_an_event_that_dies_at_its_first_attempt_is_delivered_next(
    database: Database, schedule: RetrySchedule, others: int
) -> None:
    first, second, third = (event("a") for _ in range(3))
    courier = Courier(database, add_target(database), answering({first.id: Failed("no")}), schedule=schedule, batch=100)
    # Those recorded later are delivered in the same batch, so that the partition's cursor goes on.
    record(database, first, second, third, *(event(f"k{number}") for number in range(others * 8)))
    work(courier, now_ms() + 100, turns=100)  # beyond max_age
    assert [one.id for one in courier.scripted.got if one.key == "a"] == [second.id, third.id]
    assert [letter.event_id for letter in DeadLetters(database).list(Filter())] == [first.id]
    assert parked_rows(database) == []
    assert_balanced(database)


def test_after_a_death_an_event_that_was_not_sent_becomes_the_head_and_not_a_waiting_one(database: Database) -> None:
    first, second, third, other = event("a"), event("a"), event("a"), event("b0")
    outcomes: dict[str, Outcome] = {first.id: Failed("no"), second.id: Unavailable("reset"), third.id: DELIVERED}
    courier = Courier(
        database, add_target(database), answering(outcomes), schedule=RetrySchedule(max_attempts=1), batch=100
    )
    record(database, first, second, third, *(event(f"b{number}") for number in range(40)), other)
    courier.run(turns=1)
    assert list(due_times(database).values()) == [0]
    assert_balanced(database)


def test_a_defect_of_an_adapter_makes_one_head_of_an_object_whose_events_all_failed(database: Database) -> None:
    schedule = RetrySchedule(base=HOUR, cap=HOUR)
    courier = Courier(database, add_target(database), Scripted(_defect), schedule=schedule, batch=100)
    record(database, *(event("a") for _ in range(4)))
    courier.run()
    for hours in range(1, 4):
        assert_each_object_has_one_head(database)
        work(courier, now_ms() + hours * (HOUR + 1), turns=1)
    assert [row.attempts for row in parked_rows(database)] == [4, 0, 0, 0]
    assert_balanced(database)


def _defect(_: Event) -> Outcome:
    raise ZeroDivisionError


def _delivered_then_failing(database: Database, schedule: RetrySchedule) -> tuple[Courier, list[Event]]:
    """An object whose first event is delivered, and whose second one failed once."""
    courier = Courier(database, add_target(database), schedule=schedule)
    events = record(database, event("a"))
    courier.run()
    events += record(database, event("a"))
    courier.scripted.script = lambda one: Failed("no")
    courier.run(turns=1)
    return courier, events


def test_an_older_event_that_a_replay_parks_in_front_waits_as_long_as_the_head_did(database: Database) -> None:
    courier, events = _delivered_then_failing(database, RetrySchedule(base=HOUR, cap=HOUR))
    [due] = due_times(database).values()
    Replays(database).begin(courier.target, Selection(before=_received(database, events[0]) + 1))
    courier.scripted.got.clear()
    sent: list[str] = []
    courier.scripted.script = lambda one: sent.append(one.id) or Failed("still no")  # type: ignore[func-returns-value]
    courier.run(turns=50)
    assert sent == []
    assert list(due_times(database).values()) == [due]
    assert [(row.attempts, row.not_before == m.NEVER) for row in parked_rows(database)] == [(0, False), (1, True)]
    assert_balanced(database)
    work(courier, due + 1, turns=30)
    assert sent == [events[0].id], "one attempt for each back-off"
    assert [row.attempts for row in parked_rows(database)] == [1, 1]
    assert_each_object_has_one_head(database)
    assert_balanced(database)


def _received(database: Database, one: Event) -> int:
    with database.reading() as connection:
        query = sa.select(m.events.c.received_at).where(m.events.c.id == one.id)
        return int(connection.execute(query).scalar_one())


def _break(database: Database, *rows: tuple[int, int]) -> None:
    """Give parked events, by seq, the due times that an older version or a defect may have left."""
    with database.writing() as connection:
        for seq, not_before in rows:
            connection.execute(m.parked.update().where(m.parked.c.seq == seq).values(not_before=not_before))


def _park_three(database: Database) -> tuple[Courier, list[Event]]:
    courier = Courier(database, add_target(database), Scripted(lambda one: Failed("no")), batch=100)
    courier.schedule = RetrySchedule(base=HOUR, cap=HOUR)
    events = record(database, *(event("a") for _ in range(3)))
    courier.run()
    assert len(parked_rows(database)) == 3
    return courier, events


def test_when_an_object_is_due_does_not_depend_on_the_order_of_its_rows(database: Database) -> None:
    courier, _ = _park_three(database)
    first, second, third = (row.seq for row in parked_rows(database))
    for times in ((50, 70, 60), (70, 50, 60), (60, 70, 50)):
        _break(database, *zip((first, second, third), times, strict=True))
        lease = courier.leases.claim(courier.target, range(4), "token", now_ms())
        assert isinstance(lease, Lease)
        with courier.store.reading(lease) as reader:
            assert list(reader.parked_heads().values()) == [times[0]]
        courier.leases.release(lease)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((m.NEVER, m.NEVER, m.NEVER), 0),  # nothing is ever due
        ((m.NEVER, 70, m.NEVER), 70),  # an older event was parked in front of the head
        ((50, 70, m.NEVER), 50),  # the head keeps its own time
        ((0, 70, 60), 0),
        ((m.NEVER, 70, 60), 60),
        ((50, m.NEVER, m.NEVER), 50),
    ],
)
def test_the_oldest_parked_event_becomes_the_head_again(
    database: Database, before: tuple[int, ...], after: int
) -> None:
    _park_three(database)
    rows = parked_rows(database)
    _break(database, *zip((row.seq for row in rows), before, strict=True))
    objects = {(rows[0].lane, rows[0].key_hash), (0, 12345)}
    with database.writing() as connection:
        changed = restore_heads(connection, rows[0].target_id, objects)
    assert [row.not_before for row in parked_rows(database)] == [after, m.NEVER, m.NEVER]
    assert [row.attempts for row in parked_rows(database)] == [row.attempts for row in rows]
    assert changed == (0 if before == (50, m.NEVER, m.NEVER) else 1)


def test_objects_without_a_head_are_found_and_mended_once_and_others_left_alone(database: Database) -> None:
    courier = Courier(database, add_target(database), Scripted(lambda one: Failed("no")), batch=100)
    courier.schedule = RetrySchedule(base=HOUR, cap=HOUR)
    record(database, *(event(f"k{number}") for number in range(9) for _ in range(3)))
    courier.run()
    repair = HeadRepair(database, chunk=5)
    assert repair.run() == {}
    healthy = due_times(database)
    rows = parked_rows(database)
    _break(database, (rows[0].seq, m.NEVER), (rows[10].seq, 77))  # one without a head, one with two
    assert repair.run() == {courier.target: 2}
    due = due_times(database)
    assert due.pop((rows[0].lane, rows[0].key_hash)) == 0
    healthy.pop((rows[0].lane, rows[0].key_hash))
    assert due == healthy
    assert repair.run() == {}
    courier.scripted.script = lambda one: DELIVERED
    assert work(courier, now_ms() + HOUR, turns=100) == {"delivered": 27}
    assert_balanced(database)


def test_a_run_of_the_repair_reads_so_many_rows_and_the_next_goes_on_where_it_ended(database: Database) -> None:
    courier = Courier(database, add_target(database), Scripted(lambda one: Failed("no")), batch=100)
    courier.schedule = RetrySchedule(base=HOUR, cap=HOUR)
    record(database, *(event(f"k{number}") for number in range(9) for _ in range(3)))
    courier.run()
    rows = parked_rows(database)
    _break(database, *((row.seq, m.NEVER) for row in rows))
    repair = HeadRepair(database, chunk=3, chunks_each_run=2)
    mended = [repair.run().total() for _ in range(10)]
    assert max(mended) <= 4
    assert sum(mended) == 9
    assert_each_object_has_one_head(database)


def test_the_drain_repairs_a_partition_whose_parked_events_would_never_be_due(
    database: Database, outbox_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _park_three(database)
    rows = parked_rows(database)
    _break(database, (rows[0].seq, m.NEVER))
    context = Context(Settings.from_environ({"BUCKETWIRE_VAR": str(tmp_path), "BUCKETWIRE_DATABASE_URL": outbox_url}))
    offers: list[Offer] = []
    assert context.drain(offers.append) == 0
    assert list(due_times(database).values()) == [0]
    assert "repaired 1 objects" in caplog.text
    assert context.drain(offers.append) == 1
    assert [offer.lanes for offer in offers] == [(rows[0].lane,)]
    context.close()
