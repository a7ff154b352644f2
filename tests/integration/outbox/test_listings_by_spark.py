"""Buckets that Spark lists at its times: when they are due, what a worker does for each, and how they show."""

from __future__ import annotations

import os

import pytest

from app.config.arn import SourceId
from app.config.target_settings import BadSettings
from app.outbox import tables
from app.outbox.delivery.leases import LeaseLost
from app.outbox.engine.database import Database
from app.outbox.sources.rows import QUEUED_MS, any_by_spark
from spark_jobs.__main__ import jobs
from tests.support import databases
from tests.support.watched_bucket import SETTINGS, SOURCE, Known
from workers import scheduled_jobs
from workers.scheduled_jobs import JOB, RETRY_MS, JobResult, ListingWakeUps, list_bucket

pytestmark = databases.THREE
NIGHTLY = {**SETTINGS, "spark": "0 2 * * *"}


@pytest.fixture
def known(database: Database) -> Known:
    known = Known(database)
    known.sources.put("bucket", NIGHTLY)  # takes the lease away
    return known


def test_it_is_due_for_spark_alone_and_rests_until_its_next_time(known: Known) -> None:
    leases, now = known.leases, known.clock()
    assert any_by_spark(known.database)
    assert leases.free(now) == []
    [stored] = leases.free(now, by_spark=True)
    lease = leases.claim(stored, now)
    assert lease is not None
    assert leases.free(now, by_spark=True) == []
    due = now + 3_600_000
    leases.rest(lease, due)
    with pytest.raises(LeaseLost):
        leases.rest(lease, due)
    stored = known.sources.stored(SOURCE)
    assert leases.free(due - 1, by_spark=True) == []
    assert leases.free(due, by_spark=True) == [stored]
    for moment, state in ((now, "running"), (due + QUEUED_MS - 1, "running"), (due + QUEUED_MS, "waiting")):
        assert stored.state(moment) == state
    assert "worker --only spark" in stored.state_reason(due + QUEUED_MS)
    assert (stored.answer_age(due), stored.answer_age(due + QUEUED_MS + 5)) == (0, 5)
    known.sources.put("bucket", SETTINGS)
    assert [one.source for one in leases.free(known.clock())] == [SOURCE]
    assert not any_by_spark(known.database)


def test_one_that_is_new_set_or_resumed_may_wait_an_hour_for_spark(known: Known) -> None:
    registry = known.sources.registry

    def waits_an_hour(source: SourceId) -> bool:
        stored, now = known.sources.stored(source), known.clock()
        states = [stored.state(now + ms) for ms in (0, QUEUED_MS - 60_000, QUEUED_MS + 60_000)]
        return states == ["running", "running", "waiting"] and stored.answer_age(now + QUEUED_MS - 60_000) == 0

    assert waits_an_hour(SOURCE)  # set again
    new = SourceId("bucket", "new")
    registry.put(new, NIGHTLY)
    assert waits_an_hour(new)
    long_ago = tables.sources.update().values(created_at=1, pulled_at=2, resume_at=3)
    for change in (lambda: registry.resume(SOURCE), lambda: registry.put(SOURCE, {**NIGHTLY, "grace": "1s"})):
        with known.database.writing() as connection:
            connection.execute(long_ago)
        assert not waits_an_hour(SOURCE)
        change()
        assert waits_an_hour(SOURCE)
    assert {stored.source for stored in known.leases.free(known.clock() + 1_000, by_spark=True)} == {new, SOURCE}


def test_its_wake_up_is_repeated_and_follows_a_change_at_once(known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    published, wake_ups = [], ListingWakeUps()

    def publish() -> int:
        return wake_ups.publish_due(known.database, known.clock, published.append)

    assert [publish() for _ in range(3)] == [1, 0, 0]
    known.sources.registry.resume(SOURCE)
    assert [publish() for _ in range(2)] == [1, 0]
    monkeypatch.setattr(scheduled_jobs, "REPEAT_INTERVAL_SECONDS", 0)
    assert publish() == 1
    assert published == [SOURCE] * 3


def test_a_worker_starts_a_process_by_the_lease_and_shows_why_it_failed(
    known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, clock, started = known.database, known.clock, list[list[str]]()
    results = [
        JobResult(1, "no Java"),
        JobResult(-9, "what it logged last"),
        JobResult(130, "the run was stopped before it finished"),
        JobResult(os.EX_TEMPFAIL, "the source was changed"),
        JobResult(0, "60 objects"),
    ]

    def run(command: list[str], name: str) -> JobResult:
        assert name == f"listing {SOURCE}"
        started.append(command)
        assert list_bucket(database, clock, SOURCE) == "not due"  # another wake-up, meanwhile
        return results[len(started) - 1]

    monkeypatch.setattr(scheduled_jobs.jobs, "run", run)
    assert list_bucket(database, clock, SOURCE) == "no Java"
    stored, now = known.sources.stored(SOURCE), clock()
    assert (stored.state(now), stored.error, stored.failures) == ("failing", "no Java", 1)
    assert stored.answer_age(now + 90_000) >= 90_000  # no time of Spark's excuses it
    assert now + RETRY_MS - 60_000 < stored.resume_at <= now + RETRY_MS
    assert list_bucket(database, clock, SOURCE) == "not due"
    known.sources.registry.resume(SOURCE)
    reason = "its process was ended by signal 9; was there too little memory?"
    assert list_bucket(database, clock, SOURCE) == known.sources.stored(SOURCE).error == reason
    known.sources.registry.resume(SOURCE)
    for _ in range(2):  # a worker that ends, or a source that was changed: it is due at once
        list_bucket(database, clock, SOURCE)
        assert known.sources.stored(SOURCE).lease_token == ""
    list_bucket(database, clock, SOURCE)
    assert known.sources.stored(SOURCE).lease_token == started[-1][started[-1].index("--lease") + 1]
    assert len(started) == 5
    for command in started:
        [name, *words] = command[len(JOB) :]
        parsed = jobs.commands[name].make_context(name, [*words]).params
        assert (parsed["source"], parsed["token"]) == (SOURCE, words[words.index("--lease") + 1])


def test_an_interval_beside_the_times_of_spark_is_refused(known: Known) -> None:
    with pytest.raises(BadSettings, match="every"):
        known.sources.put("bucket", {**NIGHTLY, "every": "1h"})
