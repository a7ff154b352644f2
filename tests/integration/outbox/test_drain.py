"""How many wake-ups the drain sends: as many as workers can begin with now, less those that wait in the queue."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.config.arn import TargetId
from app.outbox.delivery.availability import open_breaker
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log
from tests.support import databases
from tests.support.builders import add_target, event, registry
from tests.support.delivery import Delivery, delivery
from tests.support.scripted_target import ScriptedTarget
from tests.support.tuning import tune
from workers import drain
from workers.delivery.partition_worker import LeaseSummary
from workers.delivery.retry import RetrySchedule

pytestmark = [pytest.mark.promise, databases.TWO]


class Queues:
    """The queues of targets, as a broker has them, at a time that the test sets."""

    def __init__(self, made: Delivery) -> None:
        self.context = made.context
        self.waiting = Counter[TargetId]()
        self.now = now_ms()
        made.context.clock = lambda: self.now  # type: ignore[assignment,method-assign]

    def drain(self) -> int:
        """Run a drain; how many wake-ups it has sent. It looks for targets to open only the first time."""
        if self.context.drain._tidied:
            self.context.drain._tidied = time.monotonic()  # however slow the machine is
        return self.context.drain.run(lambda target: self.waiting.update([target]), lambda target: self.waiting[target])

    def take(self, target: TargetId) -> None:
        """A worker takes a wake-up, and ends before it has claimed anything."""
        self.waiting[target] -= 1


@pytest.fixture
def queues(database: Database, outbox_url: str, tmp_path: Path) -> Iterator[Queues]:
    with delivery(outbox_url, tmp_path) as made:
        yield Queues(made)


def record(database: Database, count: int) -> None:
    Log(database).append([[event(f"k{number}") for number in range(count)]])


def test_quiet_partitions_share_a_wakeup_and_busy_ones_have_one_each(database: Database, queues: Queues) -> None:
    target = add_target(database)
    assert queues.drain() == 1, "it is to be opened"
    queues.take(target)
    assert queues.drain() == 0
    record(database, 20)
    assert queues.drain() == 1
    record(database, 400)
    queues.now += drain._REPEAT_MS
    assert queues.drain() == 3, "one waits already"
    assert queues.waiting == {target: 4}


def test_a_wakeup_that_was_lost_is_sent_again_and_one_that_waits_is_not(database: Database, queues: Queues) -> None:
    target = add_target(database)
    record(database, 400)
    assert queues.drain() == 4
    for _ in range(20):
        queues.now += drain._REPEAT_MS
        assert queues.drain() == 0, "all of them wait"
    queues.take(target)
    queues.now += drain._REPEAT_MS
    assert queues.drain() == 1
    assert queues.waiting[target] == 4


def test_work_with_which_nobody_got_on_is_announced_once_a_second(database: Database, queues: Queues) -> None:
    """Its wake-up may be with a worker that has not claimed anything yet, or was declined in favour of others."""
    target = add_target(database)
    record(database, 20)
    assert queues.drain() == 1
    sent = 0
    for _ in range(100):
        queues.take(target) if queues.waiting[target] else None
        queues.now += drain._REPEAT_MS // 20
        sent += queues.drain()
    assert 4 <= sent <= 5


def test_a_lease_that_ends_and_leaves_work_behind_is_followed_by_a_wakeup_at_once(
    database: Database, queues: Queues
) -> None:
    target = add_target(database)
    record(database, 20)
    assert queues.drain() == 1
    queues.take(target)
    row_id = registry(database).target(target).row_id
    lease = queues.context.leases.claim_due(row_id, "worker", queues.now)
    assert lease is not None
    assert queues.drain() == 0
    queues.context.leases.release(lease)
    assert queues.drain() == 1


@pytest.mark.parametrize(("events", "wake_ups"), [(20, 1), (400, 4)])
def test_a_worker_that_leaves_work_to_others_wakes_the_drain_before_it_delivers(
    database: Database, outbox_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: int, wake_ups: int
) -> None:
    """The API wakes one worker, however many events a request has recorded."""
    target = add_target(database)
    record(database, events)
    asked: list[float] = []

    def deliver(*_: object, **__: object) -> LeaseSummary:
        assert len(asked) == (wake_ups > 1)
        return LeaseSummary()

    with delivery(outbox_url, tmp_path) as made:
        monkeypatch.setattr(made.context.wakeups, "request", lambda delay=0.0: asked.append(delay))
        monkeypatch.setattr(made.context.deliverer, "_work_off", deliver)
        assert made.context.deliverer.deliver(target) == "nothing due"
        assert asked
        assert Queues(made).drain() == wake_ups


def test_a_probe_is_announced_at_once_when_its_time_has_come(database: Database, queues: Queues) -> None:
    target = add_target(database)
    record(database, 400)
    assert queues.drain() == 4
    queues.waiting.clear()
    row_id = registry(database).target(target).row_id
    open_breaker(database, row_id, "refused", queues.now + 200, probing=False)
    assert queues.drain() == 0
    queues.now += 201
    assert queues.drain() == 1


def test_a_probe_that_succeeds_is_followed_by_a_wakeup_for_the_other_partitions_at_once(
    database: Database, outbox_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, scripted, asked = add_target(database), ScriptedTarget(), list[float]()
    record(database, 400)
    open_breaker(database, registry(database).target(target).row_id, "refused", now_ms() - 1, probing=False)
    with delivery(outbox_url, tmp_path) as made:
        made.serve(scripted, RetrySchedule())
        monkeypatch.setattr(made.context.wakeups, "request", lambda delay=0.0: asked.append(delay))
        made.context.deliverer.deliver(target)
        assert 0 < len(scripted.got) < 400
        assert 0.0 in asked
        assert Queues(made).drain() == 3


def test_two_drains_send_no_more_than_one(database: Database, outbox_url: str, queues: Queues, tmp_path: Path) -> None:
    targets = [add_target(database, name) for name in ("a", "b", "c")]
    record(database, 400)
    with delivery(outbox_url, tmp_path) as made:
        other = Queues(made)
        other.waiting = queues.waiting
        for _ in range(10):
            queues.drain()
            other.drain()
            queues.now += drain._REPEAT_MS
            other.now = queues.now
    assert queues.waiting == dict.fromkeys(targets, 4)


def test_a_queue_holds_a_bounded_number_however_many_partitions_are_busy(
    database: Database, queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(monkeypatch, drain, "POLICY", max_target_messages=3)
    target = add_target(database)
    record(database, 400)
    assert queues.drain() == 3
    queues.take(target)
    queues.now += drain._REPEAT_MS
    assert queues.drain() == 1


def test_targets_that_nobody_opens_keep_no_other_one_from_being_opened(database: Database, queues: Queues) -> None:
    targets = {add_target(database, f"t{number:02d}") for number in range(12)}
    for _ in range(2):
        queues.context.drain._tidied = 0.0  # as a second later
        queues.drain()
    assert queues.waiting.keys() == targets
