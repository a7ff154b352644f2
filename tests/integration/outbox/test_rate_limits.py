"""Rate limits: never more events than tokens, whichever worker takes them, and no order lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from app.config.settings import Settings
from app.outbox import tables
from app.outbox.admin.replays import Replays, Selection
from app.outbox.delivery import availability
from app.outbox.delivery.availability import RateLimit
from app.outbox.delivery.due_work import DueWork
from app.outbox.delivery.leases import Leases
from app.outbox.delivery.ready_targets import ReadyTargets
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log, key_hash
from tests.support import databases
from tests.support.builders import add_target, event, registry
from tests.support.delivery import Delivery, delivery
from tests.support.scripted_target import Courier, ScriptedTarget, assert_counters_balance, assert_in_order
from workers.delivery.outcomes import DELIVERED, Failed, Outcome
from workers.delivery.retry import RetrySchedule

pytestmark = databases.TWO

HOUR = 3_600_000


class Clock:
    """The database's clock as the test sets it."""

    def __init__(self) -> None:
        self.now = now_ms()

    def __call__(self) -> int:
        return self.now


def test_tokens_arise_at_the_rate_and_those_of_a_second_are_kept(database: Database) -> None:
    clock = Clock()
    bucket = RateLimit(database, 7, 100, clock)
    assert [bucket.take(60), bucket.take(60), bucket.take(60)] == [60, 40, 0]
    clock.now += 90
    assert bucket.take(60) == 0, "a batch of nine is not worth it"
    clock.now += 10
    assert bucket.take(60) == 10
    clock.now += 5
    assert bucket.take(1) == 0
    clock.now += 5
    assert bucket.take(1) == 1
    clock.now += HOUR
    assert bucket.take(1000) == 100
    assert bucket.take(1) == 0


@databases.THREE
def test_what_was_not_needed_is_given_back(database: Database) -> None:
    bucket = RateLimit(database, 7, 10, clock := Clock())
    assert bucket.take(10) == 10
    bucket.give_back(4)
    assert [bucket.take(10), bucket.take(10)] == [4, 0]
    clock.now += 100
    assert bucket.take(1) == 1


def test_a_rate_of_one_and_a_very_high_one_are_kept(database: Database) -> None:
    clock = Clock()
    slow, fast = RateLimit(database, 1, 1, clock), RateLimit(database, 2, 1_000_000, clock)
    assert [slow.take(500), slow.take(500)] == [1, 0]
    assert [fast.take(500_000) for _ in range(3)] == [500_000, 500_000, 0]


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
def test_a_clock_that_is_set_costs_a_second_of_tokens_and_stops_nothing(database: Database, jump: int) -> None:
    bucket = RateLimit(database, 7, 10, clock := Clock())
    assert bucket.take(10) == 10
    clock.now += jump
    assert bucket.take(100) == 10
    assert bucket.take(100) == 0
    clock.now += 500
    assert bucket.take(100) == 5


def test_workers_share_the_tokens(database: Database) -> None:
    clock = Clock()

    def take(_: int) -> int:
        return sum(RateLimit(database, 7, 200, clock).take(7) for _ in range(10))

    with ThreadPoolExecutor(4) as pool:
        taken = sum(pool.map(take, range(4)))
    while more := RateLimit(database, 7, 200, clock).take(7):  # a worker that met others may have got none
        taken += more
    assert taken == 28 * 7


def test_a_worker_that_stops_while_it_takes_tokens_holds_up_nobody_and_no_token_is_taken_twice(
    database: Database,
) -> None:
    clock, others = Clock(), list[int]()
    assert RateLimit(database, 7, 100, clock).take(10) == 10

    def meanwhile() -> int:
        if not others:
            others.append(RateLimit(database, 7, 100, clock).take(60))
        return clock.now

    assert RateLimit(database, 7, 100, meanwhile).take(60) == 30
    assert others == [60]
    assert RateLimit(database, 7, 100, clock).take(60) == 0


def test_without_tokens_nothing_is_due_and_the_drain_knows_when_there_will_be_some(database: Database) -> None:
    limited, free = add_target(database, "limited", rate_limit=1), add_target(database, "free")
    Log(database).append([[event("a"), event("b")]])
    work, row_id = DueWork(database), registry(database).target(limited).row_id
    clock = Clock()
    assert RateLimit(database, row_id, 1, clock).take(1) == 1
    assert {due.target for due in work.find(clock.now)} == {free}
    assert clock.now < work.next_at <= clock.now + 1_001
    assert Leases(database, 10_000).claim_due(row_id, "token", clock.now) is None
    assert limited in {due.target for due in work.find(clock.now + 1_001)}


def test_a_target_that_waits_for_tokens_gets_one_wakeup_at_a_time(database: Database) -> None:
    limited = add_target(database, "limited", rate_limit=10)
    Log(database).append([[event(f"k{number}") for number in range(400)]])
    work, row_id, clock = DueWork(database), registry(database).target(limited).row_id, Clock()
    RateLimit(database, row_id, 10, clock).take(10)
    claimed, leases = list[int](), Leases(database, 10_000)
    for number in range(4):
        clock.now += 200
        [due] = work.find(clock.now)
        assert due.wake_ups == 1
        assert work.next_at <= clock.now + 100 or len(claimed) == 3
        lease = leases.claim_due(row_id, f"worker {number}", clock.now)
        assert lease is not None
        assert len(lease.positions) == 1
        claimed += lease.positions
    assert sorted(claimed) == [0, 1, 2, 3]
    clock.now += HOUR
    [due] = work.find(clock.now)
    assert due.wake_ups == 4, "its bucket is full"


@databases.THREE
def test_the_api_wakes_no_worker_of_a_target_without_tokens(database: Database) -> None:
    limited, free = add_target(database, "limited", rate_limit=1), add_target(database, "free")
    ready, due = ReadyTargets(database, registry(database), Settings.from_environ({})), {limited: [0], free: [0]}
    ready._clock = clock = Clock()  # type: ignore[assignment]
    assert [one.is_free for one in ready(due).values()] == [True, True]
    RateLimit(database, registry(database).target(limited).row_id, 1, clock).take(1)
    found = ready(due)
    assert (found[limited].is_free, found[free].is_free) == (False, True)
    assert 0 < found[limited].wait <= 1.001
    clock.now += 1_001
    assert ready(due)[limited].is_free


def test_a_clock_that_is_set_back_does_not_keep_a_target_from_being_found(database: Database) -> None:
    limited = add_target(database, "limited", rate_limit=1)
    Log(database).append([[event("a")]])
    clock = Clock()
    RateLimit(database, registry(database).target(limited).row_id, 1, clock).take(1)
    assert [due.target for due in DueWork(database).find(clock.now - HOUR)] == [limited]


def test_a_lease_ends_when_the_tokens_do_and_what_was_not_sent_stays_as_it_was(database: Database) -> None:
    target = add_target(database, "audit")
    events = [event(f"k{number % 5}") for number in range(40)]
    Log(database).append([events])
    courier = Courier(database, target, rate=3, batch=16, clock=Clock())
    courier.run()
    assert len(courier.scripted.got) == 3
    assert_counters_balance(database)
    with database.reading() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(tables.parked)).scalar() == 0
    courier.rate = 0
    courier.run()
    assert_in_order(events, courier.scripted.got)


def test_a_target_that_gets_few_events_at_a_time_gets_as_many_as_its_rate_allows(database: Database) -> None:
    """A worker takes the tokens of a whole batch before it reads it."""
    courier = Courier(database, add_target(database, "audit"), rate=10, batch=10, clock=Clock())
    for number in range(5):
        Log(database).append([[event(f"{number}-{place}") for place in range(2)]])
        courier.run()
    assert len(courier.scripted.got) == 10


def test_retries_and_replays_need_tokens_too(database: Database) -> None:
    target = add_target(database, "audit")
    row_id = registry(database).target(target).row_id
    courier = Courier(database, target, batch=16)
    events = [event(f"k{number}") for number in range(6)]
    Log(database).append([events])
    courier.scripted.script = lambda _: Failed("not yet")
    courier.run(turns=1)
    courier.rate, courier.clock, courier.scripted.script = 4, Clock(), lambda _: DELIVERED
    courier.run()
    assert len(courier.scripted.got) == 4, "parked events"
    courier.rate = 0
    courier.run()
    assert len(courier.scripted.got) == 6
    Replays(database).begin(target, Selection())
    with database.writing() as connection:
        connection.execute(tables.rate_limits.delete().where(tables.rate_limits.c.target_id == row_id))
    courier.rate = 4
    courier.run()
    assert len(courier.scripted.got) == 6 + 4
    courier.rate = 0
    courier.run()
    assert len(courier.scripted.got) == 12
    assert_counters_balance(database)


def test_failing_objects_leave_tokens_to_the_others(database: Database) -> None:
    clock, log = Clock(), Log(database)
    courier = Courier(database, add_target(database, "audit"), batch=50, clock=clock)
    courier.scripted.script = lambda each: DELIVERED if each.key == "good" else Failed("no")
    log.append([[event(f"bad{number}") for number in range(20)]])
    courier.run(turns=1)
    log.append([[event("good")]])
    courier.rate = 2
    for _ in range(100):  # in each second either the retries or the log go first, by chance
        clock.now += 1000
        courier.run(turns=1)
        if courier.scripted.got:
            break
    assert courier.scripted.keys() == ["good"]
    assert_counters_balance(database)


def test_a_lease_serves_all_of_its_partitions(database: Database) -> None:
    clock = Clock()
    courier = Courier(database, add_target(database, "audit"), batch=16, rate=1, clock=clock)
    Log(database).append([[event(f"k{number}") for number in range(400)]])
    served: set[int] = set()
    for _ in range(200):
        clock.now += 1000
        courier.run(turns=1)
        served = {key_hash(each.bucket, each.key) % 4 for each in courier.scripted.got}
        if len(served) == 4:
            break
    assert served == {0, 1, 2, 3}


@databases.THREE
def test_a_removed_targets_bucket_is_removed(database: Database) -> None:
    kept = registry(database).target(add_target(database, "kept")).row_id
    for row_id in (kept, 999):
        RateLimit(database, row_id, 5, Clock()).take(1)
    with database.writing() as connection:
        availability.forget_removed(connection)
        assert connection.execute(sa.select(tables.rate_limits.c.target_id)).scalars().all() == [kept]


@pytest.fixture
def at_work(database: Database, outbox_url: str, tmp_path: Path) -> Iterator[Delivery]:
    with delivery(outbox_url, tmp_path) as made:
        yield made


@pytest.mark.slow
def test_no_more_than_the_rate_arrive_and_all_of_them_in_order(database: Database, at_work: Delivery) -> None:
    rate = 100
    add_target(database, "audit", rate_limit=rate)
    arrived: list[float] = []

    def note(_: object) -> Outcome:
        arrived.append(time.monotonic())
        return DELIVERED

    target = ScriptedTarget(note)
    at_work.serve(target, RetrySchedule(base=1, cap=1), batch=50, rate=rate)
    events = [event(f"k{number % 7}") for number in range(250)]
    Log(database).append([events])
    begun = time.monotonic()
    at_work.until(lambda: len(target.got) == len(events))
    assert_in_order(events, target.got)
    for number, at in enumerate(arrived, 1):
        assert number <= rate + 1.1 * rate * (at - begun) + 1, f"{number} events within {at - begun:.3f} s"
