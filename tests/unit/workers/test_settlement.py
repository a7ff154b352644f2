"""Outcomes to settlements: tables of cases, no clock, no database."""

import pytest

from app.outbox.column_values import NEVER
from app.outbox.delivery.logged_events import LoggedEvent
from app.outbox.delivery.partition_reader import ParkedEvent
from app.outbox.delivery.settlement_store import Settlement
from tests.support.batch_records import NOW, Result, settled
from tests.support.builders import event
from workers.delivery.namespace_policy import SkipReason
from workers.delivery.outcomes import DELIVERED, NOT_ATTEMPTED, Failed, Rejected, Unavailable
from workers.delivery.retry import RetrySchedule
from workers.delivery.settlement import Suspicion

SCHEDULE = RetrySchedule(base=1000, cap=1000, max_attempts=3, max_age=0)
BEHIND_PARKED = SkipReason.BEHIND_PARKED
AWAY = Unavailable("connection refused")
FAILED = Failed("500")


def logged(seq: int, key_hash: int | None = None, partition: int = 0) -> LoggedEvent:
    return LoggedEvent(event(f"k{key_hash}"), partition, seq, seq if key_hash is None else key_hash, NOW - 1000)


def of_log(
    events: list[LoggedEvent], read_to: dict[int, int], results: list[Result], schedule: RetrySchedule = SCHEDULE
) -> Settlement:
    return settled(events, results, schedule, read_to)[1]


def of_parked(parked: list[ParkedEvent], results: list[Result]) -> Settlement:
    return settled(parked, results, SCHEDULE)[1]


@pytest.mark.parametrize(
    ("results", "position", "parked"),
    [
        ([DELIVERED, DELIVERED, DELIVERED], 99, []),
        ([DELIVERED, AWAY, AWAY], 1, []),
        ([AWAY, AWAY, AWAY], None, []),
        ([DELIVERED, AWAY, DELIVERED], 99, [2]),
        ([AWAY, DELIVERED, AWAY], 2, [1]),
        ([AWAY, Rejected("no"), AWAY], 2, [1]),
        ([FAILED, AWAY, AWAY], 1, [1]),
        ([SkipReason.SUPERSEDED, AWAY, SkipReason.SUPERSEDED], 1, []),
        ([SkipReason.SUPERSEDED, SkipReason.UNCHANGED, DELIVERED], 99, []),
        ([BEHIND_PARKED, DELIVERED, FAILED], 99, [1, 3]),
        ([AWAY, SkipReason.SUPERSEDED, BEHIND_PARKED], None, []),
        ([DELIVERED, SkipReason.NO_ROOM, SkipReason.SUPERSEDED], 1, []),
    ],
)
def test_the_cursor_passes_what_got_an_answer_and_parks_what_lies_between(
    results: list[Result], position: int | None, parked: list[int]
) -> None:
    settlement = of_log([logged(1), logged(2), logged(3)], {0: 99}, results)
    assert settlement.progress[0].position == position
    assert [park.seq for park in settlement.parked] == parked


def test_partitions_do_not_disturb_each_other() -> None:
    events = [logged(1, partition=0), logged(2, partition=1), logged(3, partition=0)]
    settlement = of_log(events, {0: 9, 1: 9, 2: 9}, [AWAY, DELIVERED, AWAY])
    assert {partition: progress.position for partition, progress in settlement.progress.items()} == {
        0: None,
        1: 9,
        2: 9,
    }
    assert settlement.parked == []


def test_later_events_of_a_parked_object_go_behind_it_with_no_attempt_counted() -> None:
    events = [logged(1, 7), logged(2, 7), logged(3, 7), logged(4, 8)]
    settlement = of_log(events, {0: 4}, [FAILED, NOT_ATTEMPTED, NOT_ATTEMPTED, DELIVERED])
    assert [(park.seq, park.attempts, park.not_before == NEVER) for park in settlement.parked] == [
        (1, 1, False),
        (2, 0, True),
        (3, 0, True),
    ]
    assert settlement.progress[0].delivered == 1


def test_what_was_not_attempted_after_the_last_answer_stays_in_the_log() -> None:
    settlement = of_log([logged(1, 7), logged(2, 7), logged(3, 8)], {0: 9}, [FAILED, NOT_ATTEMPTED, AWAY])
    assert [park.seq for park in settlement.parked] == [1]
    assert settlement.progress[0].position == 1


@pytest.mark.parametrize("schedule", [RetrySchedule(max_attempts=1), RetrySchedule(base=10**9, cap=10**9, max_age=1)])
def test_what_was_not_attempted_behind_an_event_that_died_is_the_next_head(schedule: RetrySchedule) -> None:
    events = [logged(1, 7), logged(2, 7), logged(3, 7), logged(4, 8)]
    settlement = of_log(events, {0: 4}, [FAILED, NOT_ATTEMPTED, NOT_ATTEMPTED, DELIVERED], schedule)
    assert [death.seq for death in settlement.buried] == [1]
    assert [(park.seq, park.attempts, park.not_before) for park in settlement.parked] == [(2, 0, 0), (3, 0, NEVER)]


def test_only_the_first_of_an_objects_failures_counts_as_an_attempt() -> None:
    parked = [ParkedEvent(logged(seq, 7), 0, 0, "[]") for seq in (1, 2, 3)]
    settlement = of_parked(parked, [FAILED, FAILED, Rejected("bad")])
    assert [(park.seq, park.attempts) for park in settlement.retried] == [(1, 1)]
    assert (settlement.removed, settlement.buried) == ([], [])


def test_an_unavailable_hole_is_due_at_once_and_costs_no_attempt() -> None:
    settlement = of_log([logged(1, 7), logged(2, 8)], {0: 2}, [AWAY, DELIVERED])
    assert [(park.seq, park.attempts, park.not_before) for park in settlement.parked] == [(1, 0, 0)]


def test_a_rejected_event_dies_and_the_next_of_its_object_is_not_held_up() -> None:
    settlement = of_log([logged(1, 7), logged(2, 7)], {0: 2}, [Rejected("bad"), DELIVERED])
    assert [(death.seq, death.reason, death.attempts) for death in settlement.buried] == [(1, "bad", 1)]
    assert (settlement.progress[0].dead, settlement.progress[0].delivered) == (1, 1)


def test_parked_events_move_on_one_by_one() -> None:
    parked = [
        ParkedEvent(logged(1, 7), 1, NOW, "[]"),
        ParkedEvent(logged(2, 7), 0, 0, "[]"),
        ParkedEvent(logged(3, 9), 2, NOW, "[]"),
    ]
    settlement = of_parked(parked, [DELIVERED, FAILED, FAILED])
    assert settlement.removed == [parked[0], parked[2]]
    assert [(park.seq, park.attempts) for park in settlement.retried] == [(2, 1)]
    assert [(death.seq, death.attempts) for death in settlement.buried] == [(3, 3)]
    assert settlement.objects == {(0, 7), (0, 9)}


def test_parked_events_of_an_unavailable_target_stay_as_they_are() -> None:
    parked = [ParkedEvent(logged(1, 7), 1, NOW, "[]"), ParkedEvent(logged(2, 7), 0, 0, "[]")]
    settlement = of_parked(parked, [AWAY, NOT_ATTEMPTED])
    assert (settlement.removed, settlement.retried, settlement.buried) == ([], [], [])
    assert 0 in settlement.progress, "the settlement is still guarded by the lease"


def test_a_suspect_is_parked_until_it_is_due_and_what_was_not_sent_after_it_stays_in_the_log() -> None:
    events = [logged(1, 7), logged(2, 7), logged(3, 8)]
    settlement = of_log(events, {0: 3}, [(AWAY, Suspicion(NOW, NOW + 200)), NOT_ATTEMPTED, NOT_ATTEMPTED])
    assert [(park.seq, park.attempts, park.not_before, park.refused_at) for park in settlement.parked] == [
        (1, 0, NOW + 200, NOW),
    ]
    assert settlement.progress[0].position == 1


def test_a_suspect_behind_another_of_its_object_only_waits() -> None:
    suspect = (AWAY, Suspicion(NOW, NOW + 200))
    settlement = of_log([logged(1, 7), logged(2, 7)], {0: 2}, [suspect, suspect])
    assert [(park.seq, park.refused_at, park.not_before) for park in settlement.parked] == [
        (1, NOW, NOW + 200),
        (2, 0, NEVER),
    ]


def test_a_suspect_that_is_parked_keeps_its_attempts_and_one_that_is_refused_again_has_one_more() -> None:
    entry = ParkedEvent(logged(1, 7), 1, NOW - 900, "[]", NOW - 800, NOW - 700)
    [again] = of_parked([entry], [(AWAY, Suspicion(NOW, NOW + 200))]).retried
    assert (again.attempts, again.first_tried, again.last_tried) == (1, NOW - 900, NOW - 800)
    assert (again.refused_at, again.not_before) == (NOW, NOW + 200)
    [counted] = of_parked([entry], [(Unavailable("503"), Suspicion(NOW, None))]).retried
    assert (counted.attempts, counted.last_tried, counted.refused_at) == (2, NOW, NOW)
    [failed] = of_parked([entry], [FAILED]).retried
    assert failed.refused_at == 0, "an answer of its own clears it of suspicion"
