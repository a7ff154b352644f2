"""What is said of settled batches and of events that did not go well."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from app.outbox.delivery.logged_events import LoggedEvent
from app.outbox.delivery.partition_reader import ParkedEvent
from tests.support.batch_records import NOW, Result, settled
from tests.support.builders import event
from workers.delivery.namespace_policy import SkipReason
from workers.delivery.outcomes import DELIVERED, NOT_ATTEMPTED, Failed, Rejected, Unavailable
from workers.delivery.retry import RetrySchedule
from workers.delivery.settlement import BatchRecord, Suspicion
from workers.telemetry.delivery_log import BatchLog, format_partitions

AWAY = Unavailable("connection refused")


def logged(seq: int, key: str, **members: str) -> LoggedEvent:
    return LoggedEvent(event(key)._replace(**members), 3, seq, hash(key), NOW - 500)  # type: ignore[arg-type]


def record(read: Any, *results: Result, most: int = 20, **members: Any) -> BatchRecord:
    schedule = RetrySchedule(base=1000, cap=1000, max_attempts=most)
    return settled(read, list(results), schedule, **members)[0]


def told(batch: BatchRecord, caplog: pytest.LogCaptureFixture) -> dict[str, dict[str, Any]]:
    """The failed attempts that are logged, by key: the members of their lines."""
    caplog.set_level(logging.INFO)
    caplog.clear()
    BatchLog("arn:t").batch_settled(batch)
    keys = {one.logged.event.id: one.logged.event.key for one in batch.deliveries}
    lines = [vars(line) for line in caplog.records]
    return {keys[line["event"]]: line for line in lines if "event" in line}


def of_log(*results: tuple[str, Result]) -> BatchRecord:
    events = [logged(seq, key) for seq, (key, _) in enumerate(results, 1)]
    return record(events, *[result for _, result in results], read_to={3: len(events)})


def test_each_attempt_that_failed_or_was_rejected_is_told_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    found = told(
        of_log(
            ("good", DELIVERED),
            ("bad", Failed("500")),
            ("bad", NOT_ATTEMPTED),
            ("worse", Rejected("too large")),
            ("good", DELIVERED),
        ),
        caplog,
    )
    assert set(found) == {"bad", "worse"}
    assert (found["bad"]["outcome"], found["bad"]["attempt"], found["bad"]["reason"]) == ("failed", 1, "500")
    assert found["bad"]["next_try_in"] > 0
    assert [found["worse"][name] for name in ("outcome", "attempt", "next_try_in")] == ["rejected", 1, None]


def test_events_of_a_target_that_is_away_did_not_fail(caplog: pytest.LogCaptureFixture) -> None:
    assert told(of_log(("a", DELIVERED), ("b", AWAY), ("c", AWAY)), caplog) == {}
    assert told(of_log(("a", AWAY), ("b", DELIVERED)), caplog) == {}


def test_a_later_attempt_is_told_with_its_number_and_the_last_one_as_the_end(caplog: pytest.LogCaptureFixture) -> None:
    entry = ParkedEvent(logged(1, "bad"), 1, NOW - 400, "[]")
    for most, is_dead in ((3, False), (2, True)):
        found = told(record([entry], Failed("500"), most=most), caplog)["bad"]
        assert (found["outcome"], found["attempt"], found["dead"]) == ("failed", 2, is_dead)


def test_a_suspects_refusal_is_no_attempt_and_no_retry(caplog: pytest.LogCaptureFixture) -> None:
    suspect = (AWAY, Suspicion(NOW, NOW + 200))
    assert told(of_log(("a", DELIVERED), ("b", suspect)), caplog) == {}
    refused = record([ParkedEvent(logged(1, "a"), 1, NOW - 400, "[]", NOW - 300)], suspect)
    assert not any(refused.counts().values())
    again = (Unavailable("503"), Suspicion(NOW, None))
    assert record([ParkedEvent(logged(1, "a"), 1, NOW - 400, "[]")], again).counts()["retried"] == 1


def test_a_line_for_people_has_all_that_its_members_have(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    events = [
        LoggedEvent(event("a"), 0, 1, 1, NOW),
        LoggedEvent(event("a2"), 1, 1, 1, NOW),
        logged(1, "b", id="e1"),
        logged(2, "c", id="e2", trace=f"{parent} vendor=x"),
    ]
    outcomes: list[Result] = [DELIVERED, DELIVERED, Failed("no\nanswer", retry_after=1.5), Rejected("never")]
    batch = settled(events, outcomes, RetrySchedule(base=0, cap=0), {0: 1, 1: 1, 3: 2}, seconds=0.5)[0]
    BatchLog("arn:t", clock=lambda: 0.0123).batch_settled(batch)
    assert caplog.messages == [
        "arn:t event=e1 failed, attempt 1 in 0.500 s, again in 1.5 s: no\\nanswer",
        f"arn:t event=e2 traceparent={parent} rejected, attempt 1 in 0.500 s, dead: never",
        "arn:t partitions=0-1,3 dead=1 delivered=2 parked=1 in 0.012 s",
    ]
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "INFO"]
    members = vars(caplog.records[2])
    assert {name: members[name] for name in ("target", "partitions", "delivered", "superseded", "parked", "dead")} == {
        "target": "arn:t", "partitions": "0-1,3", "delivered": 2, "superseded": 0, "parked": 1, "dead": 1,
    }  # fmt: skip
    members = vars(caplog.records[0])
    assert (members["event"], members["next_try_in"], members["reason"]) == ("e1", 1.5, "no\nanswer")
    assert "traceparent" not in members
    assert vars(caplog.records[1])["traceparent"] == parent


def test_a_batch_that_came_to_nothing_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    batches = BatchLog("arn:t")
    batches.batch_settled(of_log(("a", AWAY)))
    batches.lease_ended()
    assert caplog.messages == []


def test_the_batches_of_a_backlog_share_a_line_each_second(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    now = 100.0
    batches = BatchLog("arn:t", clock=lambda: now)
    for number in range(20):
        place, waiting = number % 2, number // 19
        events = [LoggedEvent(event(f"k{seq}"), place, seq, seq, NOW) for seq in range(500 + waiting)]
        results: list[Result] = [*[DELIVERED] * 500, *[SkipReason.BEHIND_PARKED] * waiting]
        batch = settled(events, results, RetrySchedule(), {place: 501})[0]
        batch.began = now - 0.125
        batches.batch_settled(batch)
        now += 0.125
    batches.lease_ended()
    batches.lease_ended()  # nothing is left
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
