"""The retry schedule and the breaker's back-off, as tables of numbers."""

from random import Random

import pytest

from workers.delivery.retry import RetrySchedule, back_off

NOW = 1_795_000_000_000


@pytest.mark.parametrize(
    ("attempts", "longest"), [(1, 1_000), (2, 2_000), (3, 4_000), (9, 256_000), (10, 300_000), (19, 300_000)]
)
def test_a_wait_is_drawn_from_nothing_to_the_ceiling(attempts: int, longest: int) -> None:
    schedule = RetrySchedule(max_age=0)
    waits = [(schedule.next_try(attempts, NOW, NOW, NOW, Random(seed)) or 0) - NOW for seed in range(300)]
    assert min(waits) >= 0
    assert max(waits) <= longest
    assert max(waits) > longest * 0.9
    assert min(waits) < longest * 0.1


def test_the_last_attempt_is_followed_by_none() -> None:
    schedule = RetrySchedule(max_attempts=3)
    assert schedule.next_try(2, NOW, NOW, NOW, Random(1)) is not None
    assert schedule.next_try(3, NOW, NOW, NOW, Random(1)) is None


def test_an_event_that_was_first_tried_too_long_ago_is_given_up() -> None:
    schedule = RetrySchedule(base=1, cap=1, max_age=60_000)
    assert schedule.next_try(1, NOW - 59_000, 0, NOW, Random(1)) is not None
    assert schedule.next_try(2, NOW - 60_001, NOW - 30_000, NOW, Random(1)) is None


def test_the_first_failure_after_an_outage_is_not_the_last_however_long_it_was() -> None:
    schedule = RetrySchedule()
    hours = 3_600_000
    first = NOW - 100 * hours
    again = schedule.next_try(2, first, first, NOW, Random(1))
    assert again is not None
    assert schedule.next_try(3, first, NOW, again, Random(1)) is None, "the target was available meanwhile"
    retry_after = schedule.next_try(19, first, NOW - 900_000, NOW, Random(1), 900)
    assert retry_after is None, "it waited because the target asked for it"
    assert schedule.next_try(20, first, first, NOW, Random(1)) is None, "attempts are counted"


@pytest.mark.parametrize(("wish", "at_least"), [(None, 0), (30, 30_000), (1e9, 900_000), (-5, 0)])
def test_a_remotes_wish_is_honoured_within_bounds(wish: float | None, at_least: int) -> None:
    schedule = RetrySchedule(base=1, cap=1)
    due = schedule.next_try(1, NOW, NOW, NOW, Random(1), wish)
    assert due is not None
    assert at_least <= due - NOW <= at_least + 1
    assert back_off(1, Random(1), wish) >= at_least


def test_a_target_that_is_back_is_looked_at_within_three_seconds() -> None:
    waits = [back_off(failures, Random(failures)) for failures in range(1, 200)]
    assert max(waits) <= 3_000
    assert waits[0] <= 200
