"""What of a call's events may be sent, and what is said of those that were not."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.support import sample_events
from workers.delivery.outcomes import DELIVERED, NOT_ATTEMPTED, Failed, Rejected, Unavailable
from workers.targets.base import LeaseExpired
from workers.targets.batch import Batch

FAILED, REJECTED, REFUSED = Failed("once"), Rejected("for good"), Unavailable("full")


@dataclass
class Lease:
    holds: bool = True
    time: bool = True

    def check(self) -> None:
        if not self.holds:
            raise LeaseExpired("it was only for a test")

    def has_time(self) -> bool:
        return self.time


def batch(keys: str, lease: Lease | None = None) -> Batch:
    return Batch([sample_events.put(key) for key in keys], lease or Lease())


def test_what_is_stuck_or_settled_does_not_go() -> None:
    made = batch("aabb")
    assert made.begin(range(4)) == [0, 1, 2, 3]
    made.settle(0, FAILED)
    made.settle(2, REJECTED)
    assert made.begin(range(4)) == [3], "a rejected event holds up nothing"
    made.settle(3, DELIVERED)
    assert made.outcomes() == [FAILED, NOT_ATTEMPTED, REJECTED, DELIVERED]


def test_only_what_was_sent_shares_a_refusal() -> None:
    made = batch("abcd")
    assert made.begin([0, 1]) == [0, 1]
    made.settle(0, REFUSED)
    assert made.is_over
    assert made.begin([2]) == []
    made.settle(1, DELIVERED)
    assert made.outcomes() == [REFUSED, DELIVERED, NOT_ATTEMPTED, NOT_ATTEMPTED]


def test_what_was_sent_and_has_no_answer_is_lost() -> None:
    made = batch("abcd")
    for index in (0, 1, 2):
        made.begin([index])
    made.settle(0, DELIVERED)
    assert made.oldest_sent() == 1
    made.lose(REFUSED)
    assert made.begin([3]) == []
    assert made.outcomes() == [DELIVERED, REFUSED, REFUSED, NOT_ATTEMPTED]


def test_nothing_goes_without_the_lease() -> None:
    made = batch("a", Lease(holds=False))
    with pytest.raises(LeaseExpired):
        made.begin([0])


def test_once_the_time_is_up_one_request_is_made() -> None:
    made = batch("abc", Lease(time=False))
    assert made.begin([0]) == [0]
    assert made.begin([1]) == []
    made.settle(0, DELIVERED)
    assert made.begin([1]) == []
    assert made.outcomes() == [DELIVERED, NOT_ATTEMPTED, NOT_ATTEMPTED]


def test_a_refused_request_is_told_apart_until_something_is_settled_whatever_the_time() -> None:
    """Else the same request would be made, refused and cut short in each call."""
    made = batch("abcd", Lease(time=False))
    assert made.begin(range(4)) == [0, 1, 2, 3]
    assert made.begin([0, 1]) == [0, 1]
    assert made.begin([0]) == [0]
    made.settle(0, REJECTED)
    assert made.begin([1]) == []
    assert made.outcomes() == [REJECTED, NOT_ATTEMPTED, NOT_ATTEMPTED, NOT_ATTEMPTED]
