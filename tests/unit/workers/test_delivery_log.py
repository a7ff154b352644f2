"""What is said of settled batches and of events that did not go well."""

from __future__ import annotations

import logging
from random import Random

import pytest

from app.outbox.delivery.logged_events import LoggedEvent
from app.outbox.delivery.partition_reader import Batch, ParkedEvent
from tests.support.builders import event
from workers.delivery.outcomes import DELIVERED, NOT_ATTEMPTED, Failed, Rejected, Unavailable
from workers.delivery.retry import RetrySchedule
from workers.delivery.second_opinion import RefusedAgain, Suspect
from workers.delivery.settlement import Result, SettlementContext, settle_batch, settle_parked
from workers.telemetry.delivery_log import (
    BatchLog,
    FailedAttempt,
    counted,
    failed_attempts,
    format_partitions,
    log_failed_attempt,
)

NOW = 1_795_000_000_000
AWAY = Unavailable("connection refused")


def rules(max_attempts: int = 20) -> SettlementContext:
    return SettlementContext(RetrySchedule(base=1000, cap=1000, max_attempts=max_attempts), NOW, Random(1))


def logged(seq: int, key: str) -> LoggedEvent:
    return LoggedEvent(event(key), 3, seq, hash(key), NOW - 500)


def said(*results: tuple[str, Result]) -> dict[str, FailedAttempt]:
    """The setbacks of a batch of events with these keys and results, by key."""
    events = [logged(seq, key) for seq, (key, _) in enumerate(results, 1)]
    outcomes = [result for _, result in results]
    settlement = settle_batch(Batch(events, {3: len(events)}), outcomes, rules())
    keys = {one.event.id: one.event.key for one in events}
    return {keys[each.event.id]: each for each in failed_attempts(settlement, zip(events, outcomes, strict=True))}


def test_each_attempt_that_failed_or_was_rejected_is_told_and_no_other() -> None:
    found = said(
        ("good", DELIVERED),
        ("bad", Failed("500")),
        ("bad", NOT_ATTEMPTED),
        ("worse", Rejected("too large")),
        ("good", DELIVERED),
    )
    assert set(found) == {"bad", "worse"}
    assert (found["bad"].outcome, found["bad"].attempt, found["bad"].reason) == ("failed", 1, "500")
    assert found["bad"].due is not None
    assert found["bad"].due > NOW
    assert (found["worse"].outcome, found["worse"].attempt, found["worse"].due) == ("rejected", 1, None)


def test_events_of_a_target_that_is_away_did_not_fail() -> None:
    assert said(("a", DELIVERED), ("b", AWAY), ("c", AWAY)) == {}
    assert said(("a", AWAY), ("b", DELIVERED)) == {}


def test_a_later_attempt_is_told_with_its_number_and_the_last_one_as_the_end() -> None:
    entry = ParkedEvent(logged(1, "bad"), 1, NOW - 400, "[]")
    for most, due in ((3, True), (2, False)):
        settlement = settle_parked([entry], [Failed("500")], rules(most))
        [found] = failed_attempts(settlement, [(entry.logged, Failed("500"))])
        assert (found.outcome, found.attempt, found.due is not None) == ("failed", 2, due)


def test_a_suspects_refusal_is_no_attempt_and_no_retry() -> None:
    suspect = Suspect(AWAY, refused_at=NOW, due=NOW + 200)
    assert said(("a", DELIVERED), ("b", suspect)) == {}
    settlement = settle_parked([ParkedEvent(logged(1, "a"), 1, NOW - 400, "[]", NOW - 300)], [suspect], rules())
    assert not any(counted(settlement).values())
    again = settle_parked([ParkedEvent(logged(1, "a"), 1, NOW - 400, "[]")], [RefusedAgain("503", None, NOW)], rules())
    assert counted(again)["retried"] == 1


def test_a_line_for_people_has_all_that_its_members_have(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    events = [logged(1, "a"), logged(2, "b")]
    settlement = settle_batch(Batch(events, {3: 2}), [DELIVERED, Failed("x")], rules())
    BatchLog("arn:t").add([0, 1, 3], counted(settlement), 0.0123)
    first, second = (each.event._replace(id=name) for name, each in zip(("e1", "e2"), events, strict=True))
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    second = second._replace(trace=f"{parent} vendor=x")
    log_failed_attempt("arn:t", FailedAttempt(first, "failed", 2, NOW + 1500, "no\nanswer"), 0.5, NOW)
    log_failed_attempt("arn:t", FailedAttempt(second, "rejected", 1, None, "never"), 0.5, NOW)
    assert caplog.messages == [
        "arn:t partitions=0-1,3 delivered=1 parked=1 in 0.012 s",
        "arn:t event=e1 failed, attempt 2 in 0.500 s, again in 1.5 s: no\\nanswer",
        f"arn:t event=e2 traceparent={parent} rejected, attempt 1 in 0.500 s, dead: never",
    ]
    assert [record.levelname for record in caplog.records] == ["INFO", "INFO", "WARNING"]
    members = vars(caplog.records[0])
    assert {name: members[name] for name in ("target", "partitions", "delivered", "superseded", "parked", "dead")} == {
        "target": "arn:t", "partitions": "0-1,3", "delivered": 1, "superseded": 0, "parked": 1, "dead": 0,
    }  # fmt: skip
    members = vars(caplog.records[1])
    assert (members["event"], members["next_try_in"], members["reason"]) == ("e1", 1.5, "no\nanswer")
    assert "traceparent" not in members
    assert vars(caplog.records[2])["traceparent"] == parent


def test_a_batch_that_came_to_nothing_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    events = [logged(1, "a")]
    batches = BatchLog("arn:t")
    batches.add([3], counted(settle_batch(Batch(events, {3: 1}), [AWAY], rules())), 0.1)
    batches.write()
    assert caplog.messages == []


def test_the_batches_of_a_backlog_share_a_line_each_second(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    now = 100.0
    batches = BatchLog("arn:t", clock=lambda: now)
    for number in range(20):
        batches.add([number % 2], {"delivered": 500, "parked": number // 19}, 0.125)
        now += 0.125
    batches.write()
    batches.write()  # nothing is left
    assert caplog.messages == [
        "arn:t partitions=0 delivered=500 in 0.125 s",
        "arn:t partitions=0-1 delivered=4000 in 1.000 s (8 batches)",
        "arn:t partitions=0-1 delivered=4000 in 1.000 s (8 batches)",
        "arn:t partitions=0-1 delivered=1500 parked=1 in 0.375 s (3 batches)",
    ]
    assert [vars(record)["batches"] for record in caplog.records] == [1, 8, 8, 3]


def test_partitions_are_written_as_runs() -> None:
    assert format_partitions([7, 0, 1, 2, 3, 9]) == "0-3,7,9"
    assert format_partitions([]) == ""
