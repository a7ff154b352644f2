"""What the record of attempts says of a settled batch."""

from __future__ import annotations

from typing import Any

from app.outbox.admin.event_states import Attempt
from app.outbox.column_values import NEVER
from app.outbox.delivery.leases import ReplayPartition
from app.outbox.delivery.logged_events import LoggedEvent
from app.outbox.delivery.partition_reader import ParkedEvent
from tests.support.batch_records import NOW, Result, settled
from tests.support.builders import event
from workers.delivery.namespace_policy import SkipReason
from workers.delivery.outcomes import DELIVERED, NOT_ATTEMPTED, Failed, Rejected, Unavailable
from workers.delivery.retry import RetrySchedule
from workers.delivery.settlement import Suspicion
from workers.telemetry.attempt_recorder import attempts_of

SCHEDULE = RetrySchedule(base=1000, cap=1000, max_attempts=2)
Run = tuple[str, int, int, int]


def logged(seq: int, key: str = "", partition: int = 3) -> LoggedEvent:
    return LoggedEvent(event(key or f"k{seq}"), partition, seq, hash(key or seq), NOW - 500)


def of_batch(*results: Result, keys: str = "", scanned: int = 40) -> list[Attempt]:
    """The attempts of a batch of the log: events 11, 12 and so on, after a cursor at 5."""
    events = [logged(11 + index, keys[index : index + 1]) for index in range(len(results))]
    return made(events, list(results), read_to={3: scanned})


def made(read: Any, results: list[Result], **members: Any) -> list[Attempt]:
    batch, _ = settled(read, results, SCHEDULE, read_after={3: 5, 4: 5}, seconds=0.03, **members)
    return list(attempts_of(batch))


def runs(attempts: list[Attempt]) -> list[Run]:
    return [(one.outcome, one.first_seq, one.last_seq, one.events) for one in attempts]


def test_a_batch_that_was_delivered_is_one_attempt_that_reaches_from_cursor_to_cursor() -> None:
    [one] = of_batch(DELIVERED, DELIVERED, DELIVERED)
    assert one == Attempt(7, 3, 6, 40, NOW, "delivered", 3, 30)
    assert of_batch() == []


def test_runs_end_where_an_event_is_not_delivered() -> None:
    assert runs(of_batch(DELIVERED, DELIVERED, Failed("500"), DELIVERED, SkipReason.BEHIND_PARKED, DELIVERED)) == [
        ("delivered", 11, 12, 2),
        ("delivered", 14, 14, 1),
        ("delivered", 16, 16, 1),
        ("failed", 13, 13, 1),
    ]


def test_superseded_and_unchanged_events_are_told_from_delivered_ones() -> None:
    found = of_batch(SkipReason.SUPERSEDED, SkipReason.SUPERSEDED, DELIVERED, SkipReason.UNCHANGED)
    assert runs(found) == [("superseded", 11, 12, 2), ("delivered", 13, 13, 1), ("unchanged", 14, 14, 1)]


def test_a_failure_has_its_number_and_the_remotes_words_in_bounds() -> None:
    rejected, failed = of_batch(Rejected("bad\x00\n" + "x" * 5000), Failed("503 later"))
    assert (rejected.outcome, rejected.attempt, len(rejected.reason)) == ("rejected", 1, 500)
    assert rejected.reason.startswith("bad\ufffd x")
    assert (failed.outcome, failed.attempt, failed.reason, failed.duration) == ("failed", 1, "503 later", 30)


def test_what_failed_behind_a_failure_of_its_object_and_what_was_not_sent_has_no_attempt() -> None:
    assert runs(of_batch(Failed("a"), Failed("a"), NOT_ATTEMPTED, keys="xxx")) == [("failed", 11, 11, 1)]


def test_an_outage_is_one_attempt_of_a_partition_and_settles_nothing() -> None:
    away = Unavailable("connection refused")
    assert runs(of_batch(DELIVERED, away, away, SkipReason.SUPERSEDED)) == [
        ("delivered", 11, 11, 1),
        ("unavailable", 12, 13, 2),
    ]
    assert runs(of_batch(away, SkipReason.SUPERSEDED)) == [("unavailable", 11, 11, 1)]
    [suspect] = of_batch((away, Suspicion(NOW, NOW + 1)))
    assert (suspect.outcome, suspect.attempt, suspect.reason) == ("unavailable", 0, "connection refused")


def test_parked_events_are_attempts_by_themselves() -> None:
    parked = [ParkedEvent(logged(seq), 1, NOW - 400, "[]") for seq in (11, 15, 19)]
    found = made(parked, [DELIVERED, Failed("again"), SkipReason.SUPERSEDED])
    assert runs(found) == [("delivered", 11, 11, 1), ("superseded", 19, 19, 1), ("failed", 15, 15, 1)]
    assert found[-1].attempt == 2


def test_an_outage_during_a_retry_settles_nothing() -> None:
    parked = [ParkedEvent(logged(seq), 1, NOW - 400, "[]") for seq in (11, 15)]
    found = made(parked, [Unavailable("away"), NOT_ATTEMPTED])
    assert runs(found) == [("unavailable", 11, 11, 1)]


def test_a_replay_is_named_and_what_it_passes_over_is_not_superseded() -> None:
    events = [logged(seq) for seq in (11, 13, 14, 17)]
    results: list[Result] = [DELIVERED, DELIVERED, SkipReason.SUPERSEDED, DELIVERED]
    replay = ReplayPartition(9, 3, 5, 17, 0, NEVER, "", "", ())
    found = made(events, results, read_to={3: 17}, replay=replay)
    assert runs(found) == [("delivered", 11, 13, 2), ("delivered", 17, 17, 1)]
    assert {one.replay_id for one in found} == {9}


def test_partitions_have_attempts_of_their_own() -> None:
    events = [logged(11), logged(12), logged(11, partition=4)]
    results: list[Result] = [DELIVERED] * 3
    found = made(events, results, read_to={3: 20, 4: 20})
    assert [(one.partition, one.events) for one in found] == [(3, 2), (4, 1)]
