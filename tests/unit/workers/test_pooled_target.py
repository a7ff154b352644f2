"""The one way to call a target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from app.events.model import Event
from tests.support.builders import event
from workers.delivery.namespace_policy import Policy
from workers.delivery.outcomes import DELIVERED, Failed, Outcome
from workers.delivery.pooled_target import BatchSizer, PooledTarget
from workers.delivery.retry import RetrySchedule
from workers.targets.base import NO_LEASE, LeaseCheck, LeaseExpired


@dataclass
class Interrupted:
    """A target whose first call an error stops, with a request on its way; `done` is what it did."""

    error: Exception = field(default_factory=lambda: LeaseExpired("another worker may have the lease"))
    done: list[str] = field(default_factory=list)

    def open(self) -> None:
        self.done.append("open")

    def deliver(self, events: Sequence[Event], window: int, lease: LeaseCheck = NO_LEASE) -> list[Outcome]:
        self.done.append("deliver")
        if self.done.count("deliver") == 1:
            raise self.error
        return [DELIVERED] * len(events)

    def close(self) -> None:
        self.done.append("close")


def test_after_a_call_that_the_end_of_its_lease_stopped_the_next_one_has_a_new_connection() -> None:
    target = Interrupted()
    pooled = PooledTarget("arn:x", target, Policy.LOG, RetrySchedule(), 1, BatchSizer(10))
    stopped = pooled.call([event()], NO_LEASE)
    assert isinstance(stopped.error, LeaseExpired)
    assert stopped.late() == [0], "it may still arrive"
    assert pooled.call([event()], NO_LEASE).outcomes == [DELIVERED]
    assert target.done == ["open", "deliver", "close", "open", "deliver"]


def test_after_a_call_that_failed_unexpectedly_the_next_one_has_a_new_connection() -> None:
    target = Interrupted(ZeroDivisionError())
    pooled = PooledTarget("arn:x", target, Policy.LOG, RetrySchedule(), 1, BatchSizer(10))
    assert pooled.call([event()], NO_LEASE).outcomes == [Failed("unexpected ZeroDivisionError")]
    assert pooled.call([event()], NO_LEASE).outcomes == [DELIVERED]
    assert target.done == ["open", "deliver", "close", "open", "deliver"]
