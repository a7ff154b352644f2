"""Buckets that Spark lists at its times: when they are due, what a worker does for each, and how they show."""

from __future__ import annotations

import os

import pytest

from app.config.target_settings import BadSettings
from app.outbox.delivery.leases import LeaseLost
from app.outbox.engine.database import Database
from app.outbox.sources.stored import QUEUED_MS, any_by_spark
from spark_jobs.__main__ import jobs
from tests.support import databases
from tests.support.watched_bucket import SETTINGS, SOURCE, Known
from workers import bucket_listings, reconcile_jobs
from workers.bucket_listings import RETRY_MS, ListingWakeUps, list_bucket
from workers.reconcile_jobs import JOB, JobResult

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
    assert [one.source for one in leases.free(now)] == [SOURCE]
    assert not any_by_spark(known.database)


def test_its_wake_up_is_repeated_and_follows_a_change_at_once(known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    published, wake_ups = [], ListingWakeUps()

    def publish() -> int:
        return wake_ups.publish_due(known.database, known.clock, published.append)

    assert [publish() for _ in range(3)] == [1, 0, 0]
    known.sources.registry.resume(SOURCE)
    assert [publish() for _ in range(2)] == [1, 0]
    monkeypatch.setattr(reconcile_jobs, "REPEAT_INTERVAL_SECONDS", 0)
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

    monkeypatch.setattr(bucket_listings.jobs, "run", run)
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
