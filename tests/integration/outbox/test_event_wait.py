"""A worker that keeps its lease until more events come: nothing is lost, overtaken or held up by it."""

import threading
from collections.abc import Callable
from random import Random
from uuid import uuid4

import pytest

from app.config.settings import Settings
from app.events.model import Event
from app.outbox.admin.replays import Replays, Selection
from app.outbox.delivery.due_work import DueWork
from app.outbox.delivery.leases import Lease, Leases
from app.outbox.delivery.partition_reader import Batch
from app.outbox.delivery.ready_targets import ReadyTargets
from app.outbox.delivery.settlement_store import SettlementStore
from app.outbox.engine.database import Database, now_ms
from app.outbox.log import arrivals
from app.outbox.log.append import Log
from tests.services import until
from tests.support import databases
from tests.support.builders import add_target, event, registry
from tests.support.query_cost import query_cost
from tests.support.scripted_target import Courier, assert_counters_balance, assert_in_order
from workers.delivery import lease_term, retry
from workers.delivery.lease_term import EventWait
from workers.delivery.outcomes import DELIVERED, Failed

pytestmark = databases.TWO


def claimed(database: Database, courier: Courier, partitions: range = range(64)) -> Lease:
    row_id = registry(database).target(courier.target).row_id
    lease = courier.leases.claim(row_id, partitions, uuid4().hex, now_ms())
    assert lease is not None
    return lease


def test_a_claim_takes_free_partitions_too_and_leaves_those_that_are_leased(database: Database) -> None:
    target = add_target(database)
    leases, row_id, now = Leases(database, 10_000), registry(database).target(target).row_id, now_ms()
    assert leases.claim_due(row_id, "in vain", now, with_free=True) is None
    Log(database).append([[event("k")]])
    [due] = DueWork(database).find(now)
    [place] = [one.partition for one in due.partitions]
    others = [partition for partition in range(4) if partition != place]
    assert leases.claim(row_id, others[:1], "first", now) is not None
    lease = leases.claim_due(row_id, "second", now, with_free=True)
    assert lease is not None
    assert lease.positions.keys() == {place, *others[1:]}


def test_targets_are_ready_with_a_partition_among_the_due_ones_that_no_worker_has(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = add_target(database)
    ready = ReadyTargets(database, registry(database), Settings.from_environ({}))
    assert ready({target: range(4)})[target].is_free
    leases, row_id = Leases(database, 10_000), registry(database).target(target).row_id
    lease = leases.claim(row_id, [1], "first", now_ms())
    assert lease is not None
    assert ready({target: range(4)})[target].is_free
    assert not ready({target: [1]})[target].is_free
    leases.release(lease)
    assert ready({target: [1]})[target].is_free
    monkeypatch.setattr(database, "reading", lambda: pytest.fail("nothing is due for a target that is ready"))
    assert ready({}) == {}


def test_a_reader_learns_of_events_of_its_own_partitions_and_target_only(database: Database) -> None:
    courier = Courier(database, add_target(database, bucket="mine"))
    other = add_target(database, "other", bucket="other")
    assert other != courier.target
    lease, log = claimed(database, courier), Log(database)
    with SettlementStore(database, 10_000).reading(lease) as reader:
        assert reader.load(10).at_end
        assert not reader.has_new_events()
        for number in range(20):
            log.append([[event(f"k{number}", bucket="other")]])
            assert not reader.has_new_events()
        mine = event("k", bucket="mine")
        log.append([[mine]])
        assert reader.has_new_events()
        batch = reader.load(10)
    assert [logged.event.id for logged in batch.events] == [mine.id]
    assert batch.at_end


@pytest.mark.parametrize("window", [3, 10_000])
def test_a_reader_of_many_partitions_finds_every_event_whatever_lies_between(
    database: Database, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr(arrivals, "WINDOW_SEQS", window)
    courier = Courier(database, add_target(database, bucket="mine"), batch=7)
    add_target(database, "other", bucket="other")
    log, random, recorded = Log(database), Random(4), list[Event]()
    for _ in range(12):
        buckets = random.choices(["mine", "other"], [1, 2], k=9)
        some = [event(f"k{random.randrange(9)}", bucket=bucket) for bucket in buckets]
        log.append([some])
        recorded += [one for one in some if one.bucket == "mine"]
        if random.random() < 0.6:
            courier.run(turns=random.randrange(1, 4))
    courier.run()
    assert_in_order(recorded, courier.scripted.got)
    assert len(courier.scripted.got) == len(recorded)
    assert_counters_balance(database)


def in_a_thread(courier: Courier, wait: EventWait) -> tuple[threading.Thread, Callable[[], None]]:
    """A worker that goes on until the wait ends; the function stops it."""
    worker, stopped = courier.partitions(), threading.Event()
    assert worker is not None

    def work() -> None:
        worker.work_off(stopped.is_set, wait)
        courier.leases.release(worker._lease)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, stopped.set


def test_events_that_come_while_a_worker_waits_are_delivered_under_the_same_lease(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "WAIT_PATIENCE_SECONDS", 60)
    courier, log = Courier(database, add_target(database)), Log(database)
    events = [event("k"), event("l"), event("k"), *(event(f"many{number % 5}") for number in range(40))]
    log.append([events[:1]])
    may_wait = threading.Event()
    may_wait.set()
    wait = EventWait(may_wait.is_set)
    wait._ends += 60
    thread, stop = in_a_thread(courier, wait)
    try:
        for first, last in ((1, 2), (2, 3), (3, len(events))):
            until(lambda: len(courier.scripted.got) == first, 30, what="what was recorded so far")  # noqa: B023
            log.append([events[first:last]])
        until(lambda: len(courier.scripted.got) == len(events), 30, what="all events")
        assert courier.partitions() is None, "it holds its lease"
        may_wait.clear()
        thread.join(30)
        assert not thread.is_alive(), "it ends once no other process is idle"
    finally:
        stop()
        may_wait.clear()
        thread.join(30)
    assert_in_order(events, courier.scripted.got)
    assert len(courier.scripted.got) == len(events)
    assert_counters_balance(database)


def test_a_changed_target_ends_the_wait_and_its_new_events_stay(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "WAIT_PATIENCE_SECONDS", 60)
    courier, log, unchanged = Courier(database, add_target(database)), Log(database), [True]
    log.append([[event("k")]])
    wait = EventWait(lambda: True, lambda: unchanged[0])
    wait._ends += 60
    thread, stop = in_a_thread(courier, wait)
    try:
        until(lambda: courier.scripted.got, 30, what="the first event")
        unchanged[0] = False
        log.append([[event("k")]])
        thread.join(30)
        assert not thread.is_alive()
    finally:
        stop()
        thread.join(30)
    assert len(courier.scripted.got) == 1


class Reader:
    """Has work, or new events, as set."""

    def __init__(self, *, work: bool = False, new: int = -1) -> None:
        self.work, self.new, self.looks = work, new, 0

    def has_work(self) -> bool:
        return self.work

    def has_new_events(self) -> bool:
        self.looks += 1
        return self.looks == self.new


def goes_on(wait: EventWait, reader: Reader, events: int, *, at_end: bool = True) -> bool:
    return wait.wants_next_batch(reader, events, at_end=at_end)  # type: ignore[arg-type]


def test_where_no_process_is_idle_a_worker_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = [0.0]
    monkeypatch.setattr(lease_term.time, "monotonic", lambda: moments[0])
    wait = EventWait(lambda: False, pause=lambda _: None)
    assert not goes_on(wait, reader := Reader(new=1), 3)
    assert goes_on(wait, Reader(work=True), 3)
    moments[0] = retry.WAIT_PATIENCE_SECONDS
    assert not goes_on(wait, Reader(work=True), 3), "others may wait for this process"
    assert goes_on(wait, Reader(work=True), 100), "a lease for each batch would cost them more"
    assert reader.looks == 0


def test_a_wait_ends_after_some_time_without_events_and_after_the_longest_time(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = [0.0]
    monkeypatch.setattr(lease_term.time, "monotonic", lambda: moments[0])
    wait = EventWait(lambda: True, pause=lambda seconds: moments.append(moments.pop() + seconds))
    assert not goes_on(wait, reader := Reader(), 3)
    assert reader.looks == pytest.approx(retry.WAIT_PATIENCE_SECONDS / retry.WAIT_PAUSE_SECONDS, abs=1)
    turns = 0
    while goes_on(wait, Reader(new=1), 1):
        turns += 1
        assert turns < 1000
    assert retry.MAX_WAIT_SECONDS <= moments[0] <= retry.MAX_WAIT_SECONDS + 2 * retry.WAIT_PATIENCE_SECONDS


def test_many_events_are_followed_by_more_after_one_longer_pause() -> None:
    pauses = list[float]()
    idle, busy = EventWait(lambda: True, pause=pauses.append), EventWait(lambda: False, pause=pauses.append)
    assert goes_on(idle, Reader(work=True), 1000)
    assert pauses == [retry.LONG_PAUSE_SECONDS]
    assert goes_on(idle, Reader(), 1000, at_end=False)
    assert not goes_on(busy, Reader(), 1000)
    assert len(pauses) == 1, "neither before the end of the log nor before the lease is given up"


def test_of_a_backlog_that_others_could_share_the_lease_is_given_up_after_some_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moments = [0.0]
    monkeypatch.setattr(lease_term.time, "monotonic", lambda: moments[0])
    wait, alone = EventWait(lambda: True, pause=lambda _: None), EventWait(lambda: False)
    moments[0] = retry.MAX_BEHIND_SECONDS / 2
    assert wait.wants_next_batch(Reader(), 1000, at_end=False, shares=True)  # type: ignore[arg-type]
    moments[0] = retry.MAX_BEHIND_SECONDS
    assert wait.wants_next_batch(Reader(), 1000, at_end=False)  # type: ignore[arg-type]
    assert wait.wants_next_batch(Reader(work=True), 1000, at_end=True, shares=True)  # type: ignore[arg-type]
    moments[0] += retry.MAX_BEHIND_SECONDS / 2
    assert wait.wants_next_batch(Reader(), 1000, at_end=False, shares=True)  # type: ignore[arg-type]
    moments[0] += retry.MAX_BEHIND_SECONDS / 2
    assert not wait.wants_next_batch(Reader(), 1000, at_end=False, shares=True)  # type: ignore[arg-type]
    assert alone.wants_next_batch(Reader(), 1000, at_end=False, shares=True)  # type: ignore[arg-type]


def worked_off(courier: Courier, wait: EventWait) -> None:
    worker = courier.partitions()
    assert worker is not None
    worker.work_off(lambda: False, wait)
    courier.leases.release(worker._lease)


def test_a_backlog_of_several_partitions_is_shared_and_that_of_one_is_not(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "MAX_BEHIND_SECONDS", 0)
    log, hot = Log(database), Courier(database, add_target(database, bucket="hot"), batch=20)
    log.append([[event("k", bucket="hot") for _ in range(100)]])
    worked_off(hot, EventWait(lambda: True))
    assert len(hot.scripted.got) == 100
    many = Courier(database, add_target(database, "many", bucket="many"), batch=20)
    log.append([[event(f"k{number}", bucket="many") for number in range(100)]])
    worked_off(many, EventWait(lambda: True))
    assert 0 < len(many.scripted.got) <= 40
    many.rate = 1_000_000  # then the tokens decide
    worked_off(many, EventWait(lambda: True))
    assert len(many.scripted.got) == 100


def test_due_retries_are_worked_off_under_one_lease(database: Database) -> None:
    courier = Courier(database, add_target(database), batch=200)
    Log(database).append([[event(f"k{number}") for number in range(40)]])
    courier.scripted.script = lambda _: Failed("not yet")
    courier.run(turns=1)
    courier.batch, courier.scripted.script = 10, lambda _: DELIVERED
    worked_off(courier, EventWait(lambda: True))
    assert len(courier.scripted.got) == 40
    assert_counters_balance(database)


def test_a_replay_of_several_partitions_is_shared(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "MAX_BEHIND_SECONDS", 0)
    courier = Courier(database, add_target(database), batch=10)
    Log(database).append([[event(f"k{number}") for number in range(200)]])
    courier.run()
    Replays(database).begin(courier.target, Selection())
    courier.scripted.got.clear()
    worked_off(courier, EventWait(lambda: True))
    assert 0 < len(courier.scripted.got) <= 40
    courier.run()
    assert len(courier.scripted.got) == 200
    assert_counters_balance(database)


@pytest.mark.parametrize("rate", [0, 1000])
def test_a_changed_target_ends_the_lease_also_while_there_is_a_backlog(
    database: Database, monkeypatch: pytest.MonkeyPatch, rate: int
) -> None:
    monkeypatch.setattr(retry, "CHECK_SECONDS", 0)
    courier = Courier(database, add_target(database), batch=10, rate=rate)
    Log(database).append([[event(f"k{number}") for number in range(100)]])
    worked_off(courier, EventWait(lambda: False, lambda: len(courier.scripted.got) < 20))
    assert 20 <= len(courier.scripted.got) < 40


def test_during_a_backlog_the_target_is_looked_at_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    moments, looks = [0.0], list[float]()
    monkeypatch.setattr(lease_term.time, "monotonic", lambda: moments[0])
    wait = EventWait(lambda: False, lambda: not looks.append(moments[0]), pause=lambda _: None)
    for number in range(1, 41):
        moments[0] = number / 16
        assert goes_on(wait, Reader(work=True), 100, at_end=number % 2 == 0)
    assert looks == [0.5, 1.0, 1.5, 2.0, 2.5]


def test_a_waiting_reader_reads_no_event_of_other_targets(database: Database) -> None:
    courier = Courier(database, add_target(database, bucket="mine"))
    add_target(database, "other", bucket="other")
    lease, log, costs = claimed(database, courier), Log(database), list[int]()
    with SettlementStore(database, 10_000).reading(lease) as reader:
        for count in (50, 1500):
            log.append([[event(f"k{number}", bucket="other") for number in range(count)]])
            with query_cost(database) as cost:
                assert not reader.has_new_events()
                assert reader.load(10) == Batch((), {}, at_end=True)
            costs.append(cost.rows)
    assert costs[1] <= costs[0] + 20
