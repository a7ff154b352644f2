"""A bucket as a source, on a real MinIO that is told to notify nobody: what its listings find, and what they refuse."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import orjson
import pytest
import sqlalchemy as sa

from app.config.sources.bucket import BucketSourceSettings
from app.config.target_settings import load
from app.config.tls import validities_of_file
from app.events.limits import Limits
from app.events.model import origin_of
from app.outbox import tables
from app.outbox.engine.clock import DatabaseClock
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log
from app.outbox.log.retention import purge
from app.outbox.processes import Certificate, read_certificates
from app.outbox.sources.watched import read_watched
from tests import services
from tests.services import until
from tests.support.builders import add_target, registry
from tests.support.host_of_worker import HostOfWorker
from tests.support.pulled_events import running
from tests.support.recording_proxy import Wiretap
from tests.support.watched_bucket import WatchedBucket, counted, values
from workers.source_test import run_source_test
from workers.sources import source_thread
from workers.systems.bucket.source import BucketSource

pytestmark = pytest.mark.promise
KEYS = [
    "a.txt",
    "b c.txt",
    "new\nline\ttab.txt",
    "percent%20+%.txt",
    "ordner/ü.txt",
    "ordner/\U0001f600.txt",
    "z/1.txt",
    "z/2.txt",
]


@pytest.fixture(scope="module")
def minio() -> Iterator[services.MinIO]:
    with services.minio() as server:
        yield server


def test_a_first_listing_remembers_and_the_next_find_what_changed(minio: services.MinIO, database: Database) -> None:
    bucket = WatchedBucket(minio, database)
    bucket.put(*KEYS)
    bucket.watch()
    with running(database):
        bucket.listed(1)
        assert bucket.events() == []
        bucket.put("a.txt", body=b"other")
        bucket.put("new.txt")
        minio.mc("rm", "--recursive", "--force", f"m/{bucket.name}/z")
        bucket.list_again()
        found = bucket.events()
        bucket.list_again(2)
        assert bucket.events() == found
    put, delete = "ObjectCreated:Put", "ObjectRemoved:Delete"
    assert sorted(found) == [(put, "a.txt"), (put, "new.txt"), (delete, "z/1.txt"), (delete, "z/2.txt")]
    state = bucket.state
    assert (state.created, state.changed, state.removed, state.explained) == (1, 1, 2, 0)
    assert (state.objects, state.listings, state.pending) == (len(bucket.keys()), 4, 0)
    assert state.requests >= 4


def test_the_certificate_of_its_server_is_known(database: Database, certificates: services.Certificates) -> None:
    [valid] = validities_of_file(str(certificates.cert))
    with services.minio(tls=True) as minio:
        bucket = WatchedBucket(minio, database, tls_ca=str(certificates.ca))
        bucket.watch()
        with running(database):
            bucket.listed(1)
            until(lambda: [one.valid for one in met(database)] == [valid], what="its certificate")


def met(database: Database) -> list[Certificate]:
    with database.reading() as connection:
        return read_certificates(connection, [], now_ms())


def test_an_event_says_that_a_listing_found_it(minio: services.MinIO, database: Database) -> None:
    bucket = WatchedBucket(minio, database, initial="events", tenant="acme")
    bucket.put("a b.txt")
    bucket.watch()
    with running(database):
        bucket.listed(1)
    [listed] = bucket.s3.list_objects_v2(Bucket=bucket.name)["Contents"]
    e = tables.events.c
    with database.reading() as connection:
        row = connection.execute(sa.select(tables.events).where(e.bucket == f"acme:{bucket.name}")).one()
    record = orjson.loads(row.record)
    facts = record["responseElements"]
    assert facts["x-bucketwire-found-by"] == "bucket:x"
    assert record["eventSource"] == "bucketwire:watch"
    assert record["s3"]["object"] | {"sequencer": ""} == {
        "key": "a+b.txt", "size": 1, "eTag": listed["ETag"].strip('"'), "sequencer": "",
    }  # fmt: skip
    assert row.time == round(listed["LastModified"].timestamp() * 1000)
    origin = origin_of(row.origin)
    assert (origin.kind, origin.name, origin.position) == ("source", "bucket:x", facts["x-bucketwire-listed-at"])


def test_versions_and_delete_markers_are_found(minio: services.MinIO, database: Database) -> None:
    bucket = WatchedBucket(minio, database, versioned=True, initial="events")
    bucket.put("a.txt", "b.txt", "c.txt")
    bucket.put("a.txt", body=b"second")
    bucket.watch()
    with running(database):
        bucket.listed(1)
        assert counted(bucket.events()) == {"a.txt": 2, "b.txt": 1, "c.txt": 1}
        assert bucket.mirrored() == {"a.txt", "b.txt", "c.txt"}
        bucket.remove("b.txt")
        versions = bucket.s3.list_object_versions(Bucket=bucket.name, Prefix="a.txt")["Versions"]
        for version in versions:
            bucket.s3.delete_object(Bucket=bucket.name, Key="a.txt", VersionId=version["VersionId"])
        bucket.list_again()
        assert bucket.mirrored() == {"c.txt"}
        assert ("ObjectRemoved:DeleteMarkerCreated", "b.txt") in bucket.events()
        [marker] = bucket.s3.list_object_versions(Bucket=bucket.name, Prefix="b.txt")["DeleteMarkers"]
        bucket.s3.delete_object(Bucket=bucket.name, Key="b.txt", VersionId=marker["VersionId"])
        bucket.list_again()
        assert bucket.mirrored() == {"b.txt", "c.txt"}
        events = bucket.events()
        bucket.list_again()
        assert bucket.events() == events


def test_versions_that_begin_or_are_suspended_between_two_listings_are_followed(
    minio: services.MinIO, database: Database
) -> None:
    bucket = WatchedBucket(minio, database, initial="events")

    def versioning(status: str) -> None:
        bucket.s3.put_bucket_versioning(Bucket=bucket.name, VersioningConfiguration={"Status": status})

    bucket.put("changed", "removed", "same")
    bucket.watch()
    with running(database):
        bucket.listed(1)
        versioning("Enabled")
        bucket.put("changed", body=b"second")
        bucket.remove("removed")
        bucket.list_again()
        assert counted(bucket.events()) == {"changed": 2, "removed": 2, "same": 1}
        assert bucket.mirrored() == {"changed", "same"} == set(bucket.keys())
        versioning("Suspended")
        bucket.put("changed", "removed", body=b"third")
        bucket.remove("same")
        bucket.list_again()
        assert bucket.mirrored() == {"changed", "removed"} == set(bucket.keys())
        events = bucket.events()
        bucket.list_again()
        assert bucket.events() == events


def test_what_was_reported_is_explained_also_during_the_grace(minio: services.MinIO, database: Database) -> None:
    bucket = WatchedBucket(minio, database, grace="1s")
    bucket.watch()
    with running(database):
        bucket.listed(1)
        bucket.put("reported.txt", "lost.txt")
        reported = bucket.report("reported.txt")
        bucket.list_again()
        assert (bucket.state.pending, bucket.events()) == (2, [])
        Log(database).append([[reported]])

        def found() -> bool:
            bucket.list_again()
            return len(bucket.events()) > 1

        until(found, what="the object that was not reported")
        bucket.list_again()
    assert sorted(bucket.events()) == [("ObjectCreated:Put", "lost.txt"), ("ObjectCreated:Put", "reported.txt")]
    assert (bucket.state.explained, bucket.state.created) == (1, 1)


def test_many_removals_wait_for_an_approval_and_nothing_is_half_recorded(
    minio: services.MinIO, database: Database
) -> None:
    bucket = WatchedBucket(minio, database, initial="events")
    keys = [f"{number:03}.txt" for number in range(60)]
    bucket.put(*keys)
    source = bucket.watch()
    with running(database):
        bucket.listed(1)
        bucket.remove(*keys[:20])
        bucket.sources.registry.resume(source)
        until(lambda: bucket.sources.state(source) == "paused", what="a pause")
        reason = bucket.sources.stored(source).reason
        assert "lacks 20 objects of 60 that are known, more than max_removals=10" in reason
        assert "`bucketwire source resume bucket:x` approves it" in reason
        assert len(bucket.events()) == 60
        bucket.list_again()
        assert bucket.mirrored() == set(keys[20:])
        bucket.remove(*keys[20:])
        bucket.sources.registry.resume(source)
        until(lambda: bucket.sources.state(source) == "paused", what="a pause for an empty listing")
        assert "the listing is empty" in bucket.sources.stored(source).reason
        bucket.list_again()
    assert bucket.mirrored() == set()
    assert counted(bucket.events()) == dict.fromkeys(keys, 2)


def test_a_first_listing_of_another_store_removes_nothing_that_the_log_knows(
    minio: services.MinIO, database: Database
) -> None:
    bucket = WatchedBucket(minio, database, initial="events")
    bucket.put("here.txt")
    there = [bucket.report("here.txt")]
    for number in range(20):  # by the store that the events came from
        there.append(there[0]._replace(id=f"other-{number}", key=f"{number}.txt"))
    Log(database).append([there])
    source = bucket.watch()
    with running(database):
        until(lambda: bucket.sources.state(source) == "paused", what="a pause")
        assert "lacks 20 objects of 20 that are known" in bucket.sources.stored(source).reason
    assert len(bucket.events()) == 21


def test_runs_that_are_interrupted_record_nothing_twice(minio: services.MinIO, database: Database) -> None:
    bucket = WatchedBucket(minio, database, initial="events")
    keys = [f"{number:04}.txt" for number in range(2_500)]
    bucket.put(*keys)
    source = bucket.watch()
    with running(database):
        for part in (1, 501, 1_501):
            until(lambda: len(bucket.events()) >= part, 60, what="progress")  # noqa: B023 - called at once
            bucket.sources.registry.resume(source)  # takes the lease away
    with running(database):
        bucket.listed(1)
        bucket.list_again()
    assert counted(bucket.events()) == dict.fromkeys(keys, 1)
    assert bucket.sources.stored(source).repeated == 0


def test_a_bucket_that_is_gone_or_answers_of_the_past_changes_nothing(
    minio: services.MinIO, database: Database
) -> None:
    bucket = WatchedBucket(minio, database)
    bucket.put(*KEYS)
    source = bucket.watch()
    with running(database):
        bucket.listed(1)
        w = tables.watched_buckets
        with database.writing() as connection:
            connection.execute(w.update().values(store_time=w.c.store_time + 3_600_000))
        bucket.sources.registry.resume(source)
        until(lambda: "a cache has answered" in bucket.sources.stored(source).error, what="the reason")
        with database.writing() as connection:
            connection.execute(w.update().values(store_time=0))
        minio.mc("rb", "--force", f"m/{bucket.name}")
        bucket.sources.registry.resume(source)
        until(lambda: "NoSuchBucket" in bucket.sources.stored(source).error, what="the reason")
        assert bucket.sources.state(source) == "failing"
    assert bucket.events() == []
    assert bucket.state.objects == len(KEYS)


def test_a_listing_without_an_end_fills_no_disk(
    minio: services.MinIO, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_thread, "MAX_LISTED", len(KEYS) - 1)
    bucket = WatchedBucket(minio, database, initial="events")
    bucket.put(*KEYS)
    source = bucket.watch()
    with running(database):
        until(lambda: "more than 7 entries" in bucket.sources.stored(source).error, what="the reason")
        assert bucket.sources.state(source) == "failing"
    assert bucket.events() == []
    assert bucket.state.requests >= 2  # GetBucketVersioning and a page, for each of which the store is paid
    Log(database).append([[bucket.report("a.txt")]])
    assert purge(database, DatabaseClock(database)() + 3_600_000) == 0  # the first listing still needs it


def test_a_target_without_room_is_waited_for(minio: services.MinIO, database: Database) -> None:
    bucket = WatchedBucket(minio, database, initial="events")
    target = add_target(database, queue_limit="4", queue_full="reject")
    bucket.put(*KEYS)
    source = bucket.watch()
    with running(database):
        until(lambda: bucket.sources.state(source) == "failing", what="a source that waits")
        assert "queue of webhook:x is full" in bucket.sources.stored(source).error
        assert len(bucket.events()) <= 4
        registry(database).put(target, {"endpoint": "http://127.0.0.1:9/"})
        bucket.listed(1)
    assert counted(bucket.events()) == dict.fromkeys(KEYS, 1)


def test_another_bucket_or_a_removed_source_begins_anew(minio: services.MinIO, database: Database) -> None:
    bucket = WatchedBucket(minio, database)
    bucket.put("a.txt")
    source = bucket.watch()
    with running(database):
        bucket.listed(1)
        bucket.watch(prefix="b")
        bucket.listed(1)
        assert bucket.state.objects == 0
    assert bucket.events() == []
    bucket.sources.registry.remove(source)
    with database.reading() as connection:
        assert read_watched(connection) == {}


def test_the_test_of_a_source_lists_the_first_page(minio: services.MinIO, database: Database) -> None:
    bucket = WatchedBucket(minio, database)
    bucket.put("a.txt")
    steps = [*run_source_test(load(BucketSourceSettings, values(minio, bucket.name)), {}, Limits())]
    assert [(step.step, step.ok) for step in steps] == [("open", True), ("list", True)]
    assert "a.txt" in steps[-1].message
    for place, message in ((f"s3://{bucket.name}/x/", "has no complete report"), ("s3://gone/x/", "NoSuchBucket")):
        inventory = {"spark": "0 8 * * *", "inventory": place}
        *_, step = run_source_test(load(BucketSourceSettings, values(minio, bucket.name) | inventory), {}, Limits())
        assert (step.step, step.ok, message in step.message) == ("inventory", False, True)
    wrong = values(minio, bucket.name) | {"secret_key": "wrong-secret"}
    [step] = run_source_test(load(BucketSourceSettings, wrong), {}, Limits())
    assert not step.ok
    assert "wrong-secret" not in step.message


def test_nothing_of_the_host_is_used_with_a_login_or_without(
    minio: services.MinIO, database: Database, host_of_worker: HostOfWorker
) -> None:
    bucket = WatchedBucket(minio, database)
    bucket.put("a.txt")
    used = host_of_worker.connect("source", kind="bucket", values=values(minio, bucket.name))
    used.assert_nothing()
    assert "ok=False" not in used.outcome
    with Wiretap(minio) as tap:
        there = {"endpoint": f"http://{services.LOOPBACK}:{tap.port}", "bucket": bucket.name}
        used = host_of_worker.connect("source", kind="bucket", values=there)
        used.assert_nothing()
        used.assert_not_sent(bytes(tap.said))
        assert b"uthorization" not in tap.said
    assert "AccessDenied" in used.outcome


def test_another_bucket_takes_no_memory_for_what_is_known_of_s3(minio: services.MinIO, database: Database) -> None:
    settings = load(BucketSourceSettings, values(minio, WatchedBucket(minio, database).name))
    sources = [BucketSource(settings) for _ in range(4)]
    sources[0].open()
    tracemalloc.start()
    try:
        for source in sources[1:]:
            source.open()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        for source in sources:
            source.close()
    assert taken < 3 << 20  # of which one description of its API would be more


def test_a_store_that_is_away_is_named_and_listed_again(database: Database) -> None:
    with services.minio() as minio:
        bucket = WatchedBucket(minio, database, timeout="1s")
        bucket.put(*KEYS)
        source = bucket.watch()
        with running(database):
            bucket.listed(1)
            minio.stop()
            bucket.sources.registry.resume(source)
            until(lambda: bucket.sources.state(source) == "failing", 60, what="a failing source")
            assert bucket.name in bucket.sources.stored(source).error
            minio.start()
            bucket.put("new.txt")
            bucket.listed(2)
            until(lambda: bucket.sources.state(source) == "running", 60, what="a running source")
            bucket.list_again()
    assert bucket.events() == [("ObjectCreated:Put", "new.txt")]
