"""What is reported about the service, and how often: levels when they change, totals when they grow."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.events import names, own_events
from app.events.minio_json import load
from app.outbox.notices import AVAILABILITY, BACKLOG, DEAD, DRAIN, DRIFT, Known, Observation, decide

MINUTE = 60_000
INTERVAL = 10 * MINUTE


class Watched:
    """What decide() is told of one thing, time after time, and what is stored and reported of it."""

    def __init__(self, kind: str, *, new: bool = True) -> None:
        self.kind = kind
        self.known: dict[tuple[str, int], Known] = {} if new else {("dead", 9): Known(0, 0)}

    def see(self, value: int, now: int) -> list[tuple[str, int]]:
        notices = decide([Observation(self.kind, 1, "webhook:x", value)], self.known, now, INTERVAL)
        for notice in notices:
            assert self.known.get(notice.observation.key) == notice.known
            self.known[notice.observation.key] = notice.new
        return [(notice.name, notice.count) for notice in notices if notice.name]


@pytest.mark.parametrize(
    ("kind", "high", "low"),
    [
        (AVAILABILITY, own_events.UNAVAILABLE, own_events.AVAILABLE),
        (BACKLOG, own_events.BACKLOG_HIGH, own_events.BACKLOG_NORMAL),
    ],
)
def test_a_level_is_reported_when_it_changes_also_on_the_first_look(kind: str, high: str, low: str) -> None:
    watched, now = Watched(kind), INTERVAL * 100
    assert watched.see(1, now) == [(high, 0)]
    assert watched.see(1, now + 2 * INTERVAL) == []
    assert watched.see(0, now + 2 * INTERVAL + 1) == [(low, 0)]
    assert watched.see(0, now + 3 * INTERVAL) == []
    assert Watched(kind).see(0, now) == []


def test_trouble_that_comes_and_goes_is_reported_once_in_an_interval_and_the_last_report_is_true() -> None:
    watched, now = Watched(AVAILABILITY), INTERVAL * 100
    reports = [(at, watched.see(at // MINUTE % 2, at)) for at in range(now, now + 60 * MINUTE, MINUTE)]
    told = [(at, name) for at, names_ in reports for name, _ in names_]
    downs = [at for at, name in told if name == own_events.UNAVAILABLE]
    assert all(later - earlier >= INTERVAL for earlier, later in pairwise(downs))
    assert len(downs) == 6
    assert [name for _, name in told] == [own_events.UNAVAILABLE, own_events.AVAILABLE] * 6
    assert watched.see(1, downs[-1] + INTERVAL - 1) == []
    assert watched.see(1, downs[-1] + INTERVAL) == [(own_events.UNAVAILABLE, 0)]


@pytest.mark.parametrize(
    ("kind", "name"),
    [(DEAD, own_events.DEAD), (DRIFT, own_events.DRIFT), (DRAIN, own_events.RESUMED)],
)
def test_a_total_is_reported_with_all_that_was_added_and_the_past_is_not_news(kind: str, name: str) -> None:
    watched, now = Watched(kind), INTERVAL * 100
    assert watched.see(1_000_000, now) == []
    assert watched.see(1_000_000, now + 1) == []
    assert watched.see(1_000_001, now + 2) == [(name, 1)]
    assert watched.see(3_000_000, now + 3) == []
    assert watched.see(3_000_001, now + 2 + INTERVAL) == [(name, 2_000_000)]
    assert watched.see(5, now + 3 + INTERVAL) == [], "counted anew"
    assert watched.see(6, now + 3 + 3 * INTERVAL) == [(name, 1)]


def test_what_happened_to_a_target_that_was_added_later_is_news() -> None:
    watched = Watched(DEAD, new=False)
    assert watched.see(0, INTERVAL) == []
    assert watched.see(7, 2 * INTERVAL) == [(own_events.DEAD, 7)]


def test_a_clock_that_was_set_back_silences_nothing() -> None:
    watched = Watched(DEAD)
    watched.see(0, 0)
    assert watched.see(1, 1000 * INTERVAL) == [(own_events.DEAD, 1)]
    assert watched.see(2, 2 * INTERVAL) == [(own_events.DEAD, 1)]


@given(
    kind=st.sampled_from([AVAILABILITY, BACKLOG, DEAD, DRIFT]),
    steps=st.lists(st.tuples(st.integers(1, 20), st.integers(0, 3)), max_size=40),
)
def test_there_is_one_report_of_trouble_in_an_interval_and_no_more_good_news_than_bad(
    kind: str, steps: Sequence[tuple[int, int]]
) -> None:
    watched, now, total = Watched(kind), INTERVAL, 0
    bad: list[int] = []
    good = 0
    for minutes, value in steps:
        now += minutes * MINUTE
        total += value
        for name, _ in watched.see(value % 2 if kind in (AVAILABILITY, BACKLOG) else total, now):
            if name in (own_events.AVAILABLE, own_events.BACKLOG_NORMAL):
                good += 1
            else:
                bad.append(now)
    assert good <= len(bad)
    assert all(later - earlier >= INTERVAL for earlier, later in pairwise(bad))


def test_an_event_about_the_service_is_a_record_like_minios() -> None:
    event = own_events.make_service_event(
        own_events.UNAVAILABLE, "webhook:audit", 1_795_000_000_123, {"reason": "<down>", "target": "webhook:audit"}
    )
    record = load(event.record.encode())
    assert (event.bucket, event.key, event.name) == ("bucketwire:service", "webhook:audit", record["eventName"])
    assert record["s3"]["bucket"]["name"] == "bucketwire:service"
    assert record["s3"]["object"]["key"] == "webhook%3Aaudit"
    assert record["responseElements"] == {"x-bucketwire-reason": "<down>", "x-bucketwire-target": "webhook:audit"}
    assert len(event.sequencer) <= 64
    assert {name for name in vars(own_events).values() if str(name).startswith("bucketwire:")} == {
        *names.SERVICE,
        own_events.SERVICE_BUCKET,
    }
