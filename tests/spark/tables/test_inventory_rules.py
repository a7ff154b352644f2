"""The inventory has what the mirror's rules say, and what a real bucket holds."""

import io
import random
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import orjson
import pytest
from minio.commonconfig import ENABLED
from minio.versioningconfig import VersioningConfig
from pyspark.sql import SparkSession

from app.config.arn import TargetId
from app.events.model import Event
from app.events.order import comparable, following, from_time
from app.events.parsing import parse
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from spark_jobs.jobs.repair_events import backfill_event, repair_event
from spark_jobs.jobs.tables import Tables, near_keys, update
from tests import services
from tests.spark.tables.conftest import Merged
from tests.support import minio_life
from tests.support.builders import DELETE, PUT
from tests.support.table_events import (
    GET,
    HEAVY,
    HOUR,
    MARKER,
    WEEK,
    T,
    folded,
    inventory,
    made,
)

NIGHTLY = pytest.mark.nightly("random histories in parts, whose events come late, again and without sequencers")

pytestmark = pytest.mark.timeout(900)  # on a busy machine each commit takes seconds


def test_the_inventory_has_what_the_mirrors_rules_say(merged: Merged) -> None:
    expected = folded(merged.events)
    assert {marker for marker, _, _ in expected.values()} == {True, False}
    assert {latest for _, latest, _ in expected.values()} == {True, False}
    for last, rows in merged.rows.items():
        found = {(key, version): (marker, latest, seq) for _, key, version, marker, latest, seq, _, _ in rows}
        assert found == folded(merged.events[:last])
        assert len(rows) == len(found)
        of_object = {seq: (size, tag) for _, _, _, marker, _, seq, size, tag in rows if not marker}
        assert of_object == {seq: (seq - 1, f"e{seq - 1}") for seq in of_object}


@NIGHTLY
def test_events_may_come_late_and_again(tables: Tables, outbox: Database) -> None:
    """A removal before the creation, in another run; and what has been removed does not come back."""
    Log(outbox).append([[made("k", DELETE, "v1", "A9", 1), made("n", DELETE, "", "B2", 2)]])
    update(tables, outbox, WEEK)
    Log(outbox).append([[made("k", PUT, "v1", "A1", 3), made("n", PUT, "", "B1", 4), made("n", PUT, "", "B3", 5)]])
    update(tables, outbox, WEEK)
    assert inventory(tables, "size") == [("b", "n", None, 5)]
    Log(outbox).append([[made("n", PUT, "", "B1", 6), made("k", PUT, "v1", "A1", 7)]])
    update(tables, outbox, WEEK)
    assert inventory(tables, "size") == [("b", "n", None, 5)]


def test_the_events_of_a_repair_and_of_a_backfill_bring_the_inventory_to_what_was_listed(
    tables: Tables, outbox: Database
) -> None:
    """Of a bucket with versions; what the log knows has been written, again, and removed without an event."""
    known = [made(key, PUT, f"{key}1", from_time((T - HOUR) * 1_000_000), n) for n, key in enumerate(("again", "gone"))]
    target, newest = TargetId("redis", "rows"), comparable(known[0].sequencer)

    def listed(key: str, **more: Any) -> dict[str, Any]:
        return {"key": key, "etag": f"{key}'s", "size": 7, "modified": T, "version": f"{key}2"} | more

    again = listed("again", kind="stale", row_sequencer=known[0].sequencer)
    gone = listed("gone", kind="orphaned", row_sequencer=known[1].sequencer, modified=None)
    records = [repair_event(each, "b", target, newest, T + HOUR) for each in (again, gone)]
    records.append(backfill_event(listed("never told"), "b", target, ""))
    events = parse(orjson.dumps({"Records": records}), {}, now_ms=T).events
    Log(outbox).append([[*known, *events]])
    update(tables, outbox, WEEK)
    rows = [(key, version, size, tag) for _, key, version, is_latest, size, tag in
            inventory(tables, "is_latest", "size", "e_tag") if is_latest]  # fmt: skip
    assert rows == [("again", "again2", 7, "again's"), ("never told", "never told2", 7, "never told's")]


def test_a_marker_that_a_listing_found_is_there_when_its_own_event_comes_late(tables: Tables, outbox: Database) -> None:
    moment, events = 1_760_002_245_000_000_000, list[Event]()
    second, found, created, removed = (
        comparable(from_time(moment + more)) for more in (0, 244_000_000, 244_123_456, 9_244_123_456)
    )
    above = following(comparable(from_time(moment + 100_000_000)))  # a version beneath
    for listed_at in (second, found, above):
        for sequencers in ((listed_at, created), (created, listed_at), (listed_at, created, removed)):
            key = f"k{len(events)}"
            events.append(made(key, PUT, "v1", comparable(from_time(moment - 10**9)), len(events)))
            for sequencer in sequencers:
                events.append(made(key, MARKER, "v2", sequencer, len(events)))
    expected = {place: (marker, latest) for place, (marker, latest, _) in folded(events).items()}
    assert sum(marker for marker, _ in expected.values()) == 6
    Log(outbox).append([events])
    update(tables, outbox, WEEK)
    rows = inventory(tables, "is_delete_marker", "is_latest")
    assert {(key, version): tuple(rest) for _, key, version, *rest in rows} == expected


Held = dict[tuple[str, str | None], tuple[int | None, str | None, bool, bool]]  # by key and version, as below


def mixed_operations(server: services.MinIO, bucket: str, operations: int, *, versioned: bool) -> None:
    """Writes, deletes, and deletes of versions and of markers, on a few keys."""
    client, rng = server.client(), random.Random(bucket)
    for number in range(operations):
        key, choice = f"{bucket} {rng.randrange(operations // 8)}/ü+%.txt", rng.random()
        if choice < 0.6:
            content = b"x" * rng.randrange(50)
            client.put_object(bucket, key, io.BytesIO(content), len(content), metadata={"n": str(number)})
        elif choice < 0.8 or not versioned:
            client.remove_object(bucket, key)
        elif versions := list(client.list_objects(bucket, key, include_version=True)):
            client.remove_object(bucket, key, version_id=rng.choice(versions).version_id)


def listed(server: services.MinIO, bucket: str) -> Held:
    """Size, ETag, whether it is a marker and whether it is the latest, of every version in a bucket."""
    with closing(server.boto3()) as client:
        pages = list(client.get_paginator("list_object_versions").paginate(Bucket=bucket))
    return {
        (entry["Key"], None if entry["VersionId"] == "null" else entry["VersionId"]): (
            entry.get("Size"), entry.get("ETag", "").strip('"') or None, "Size" not in entry, entry["IsLatest"],
        )
        for page in pages
        for entry in (*page.get("Versions", ()), *page.get("DeleteMarkers", ()))
    }  # fmt: skip


def told(events: Sequence[Event]) -> Held:
    """The same by the mirror's rules."""
    things = [orjson.loads(one.record)["s3"]["object"] for one in events]
    return {
        place: (None if marker else thing.get("size", 0), None if marker else thing["eTag"], marker, latest)
        for place, (marker, latest, seq) in folded(events).items()
        for thing in [things[seq - 1]]
    }


@NIGHTLY
@pytest.mark.parametrize("operations", [150, pytest.param(10_000, marks=HEAVY)])
def test_the_inventory_equals_the_listing_of_a_real_bucket(tables: Tables, outbox: Database, operations: int) -> None:
    with services.receiver() as receiver, services.minio(webhooks={"R": (receiver.url, "")}) as server:
        client, held = server.client(), Held()
        for bucket in ("plain", "versioned"):
            minio_life.watched_bucket(client, bucket, ["R:webhook"])
            if bucket == "versioned":
                client.set_bucket_versioning(bucket, VersioningConfig(ENABLED))
            mixed_operations(server, bucket, operations, versioned=bucket == "versioned")
            held |= listed(server, bucket)
        # MinIO does not send its events in order.
        services.until(lambda: told(minio_life.emitted(receiver)) == held, 120, what="MinIO's events")
        events = minio_life.emitted(receiver)
    for part in (events[: len(events) // 2], events[len(events) // 2 :]):
        Log(outbox).append([part])
        update(tables, outbox, WEEK)
    rows = inventory(tables, "size", "e_tag", "is_delete_marker", "is_latest")
    assert {(key, version): tuple(rest) for _, key, version, *rest in rows} == held
    assert len(rows) == len(held)


@pytest.mark.parametrize("few", [True, False], ids=["few", "many"])
def test_a_condition_on_keys_is_met_by_them_and_by_those_between_at_most(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, few: bool
) -> None:
    monkeypatch.setattr("spark_jobs.jobs.tables._FEW_KEYS", 10 if few else 3)
    keys = [("b", 'it\'s\\ "q" {near}'), ("b", "m"), ("b", "é🎉\n"), ("c'", "k")]
    others = [("b", "a"), ("b", "n"), ("b", "\U0010ffff"), ("c", "k"), ("c'", "l"), ("d", "m")]
    columns = "bucket string, key string"
    condition = near_keys(spark.createDataFrame(keys, columns))
    met = spark.createDataFrame([*keys, *others], columns).where(condition).collect()
    assert {tuple(row) for row in met} == {*keys, *(() if few else [("b", "n")])}


def test_a_condition_on_keys_of_many_buckets_is_met_by_all(spark: SparkSession) -> None:
    keys = spark.range(101).selectExpr("string(id) AS bucket", "'k' AS key")
    assert near_keys(keys, "t") == "true"
    assert near_keys(keys.where("bucket = '7'"), "t").startswith("((t.bucket")


def test_a_condition_on_no_keys_is_met_by_none(tables: Tables, outbox: Database, spark: SparkSession) -> None:
    assert near_keys(spark.sql("SELECT 'b' AS bucket, 'k' AS key LIMIT 0")) == "(false)"
    Log(outbox).append([[made("k", number=1)]])
    update(tables, outbox, WEEK)
    Log(outbox).append([[made("k", GET, number=2)]])
    assert update(tables, outbox, WEEK).keys == 0
