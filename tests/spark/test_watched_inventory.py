"""A watched bucket of which Spark reads inventories: the events of a listing of their time, or a clear error."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from app.events.model import Event
from app.events.normalize import event_of
from app.events.order import from_time
from app.events.own_events import DELETE, PUT, object_members, own_record
from app.listings import inventory
from app.listings.limits import BadListing
from app.outbox import tables
from app.outbox.engine.database import now_ms
from app.outbox.log.append import Log
from tests import services
from tests.spark.conftest import NIGHTLY, ListedBucket
from tests.support.frames import frame_of
from tests.support.inventories import PARQUET, Report, as_csv, by_spark, entries, report
from tests.support.watched_bucket import WatchedBucket

HOUR = 3_600_000
DAY = 24 * HOUR


def age(bucket: WatchedBucket, milliseconds: int) -> None:
    """Have everything in the log be recorded so much earlier."""
    e = tables.events
    with bucket.database.writing() as connection:
        connection.execute(e.update().values(received_at=e.c.received_at - milliseconds))


def removal(bucket: WatchedBucket, key: str) -> Event:
    """What the store sends of a removal now."""
    members = object_members(key, "") | {"sequencer": from_time(now_ms() * 1_000_000)}
    return event_of(own_record("minio:s3", DELETE, bucket.name, members, now_ms(), {}), 0, 100)


def named(moment: int) -> str:
    return datetime.fromtimestamp(moment / 1000, UTC).strftime("%Y-%m-%dT%H-%MZ")


def written(bucket: WatchedBucket, folder: Path, moment: int, *contents: bytes, kind: str = "CSV",
            versioned: bool = False) -> Report:  # fmt: skip
    """A report of the bucket as it is, of another time."""
    if not contents:
        found = entries(bucket.minio, bucket.name, versioned=versioned)
        contents = (as_csv(found[::2]), as_csv(found[1::2]))
    made = report(folder, bucket.name, kind, contents, versioned=versioned)
    made.manifest.unlink()
    made.name, made.content["creationTimestamp"] = named(moment), str(moment)
    made.write()
    return made


def upload(bucket: WatchedBucket, place: str, made: Report) -> None:
    """Bring a report to its bucket."""
    for file in (*made.files, made.manifest, made.manifest.with_name("manifest.checksum")):
        bucket.s3.upload_file(str(file), place, str(file.relative_to(made.folder)))


@pytest.mark.parametrize(("versioned", "kind"), [(False, "Parquet"), (True, "ORC")])
def test_the_newest_report_is_a_listing_of_its_time(
    listed_by_spark: ListedBucket, spark: SparkSession, tmp_path: Path, versioned: bool, kind: str
) -> None:
    """What the log has learnt since then explains, and puts off."""
    listed, place, now = listed_by_spark, f"reports-{uuid4().hex[:8]}", now_ms()
    if versioned:
        listed.bucket = WatchedBucket(listed.bucket.minio, listed.bucket.database, versioned=True, **NIGHTLY)
    bucket = listed.bucket
    bucket.s3.create_bucket(Bucket=place)
    keys = [f"{number % 3}/ü +{number:02}" for number in range(20)]
    bucket.put(*keys)
    upload(bucket, place, written(bucket, tmp_path / "1", now - 3 * DAY, versioned=versioned))
    bucket.watch(initial="events", inventory=f"s3://{place}/reports/source/daily/")
    code, words = listed.run()
    assert (code, words) == (0, "20 objects: 20 created, 0 changed, 0 removed, 0 explained, 0 undecided")
    state = bucket.state
    assert (state.began_at, state.store_time) == (now - 3 * DAY, now - 4 * DAY)
    assert state.requests > 5
    code, words = listed.again()  # the same report
    assert (code, "and not newer than what is known" in words) == (1, True), words

    bucket.put(keys[0], body=b"other")
    bucket.remove(keys[1])
    bucket.put("reported", "put off", "new")
    log = Log(bucket.database)
    [version] = [one["VersionId"] for one in bucket.s3.list_object_versions(Bucket=bucket.name)["Versions"]
                 if one["Key"] == "reported"]  # fmt: skip
    log.append([[bucket.report("reported")._replace(version=version if versioned else "")]])
    age(bucket, 4 * DAY)
    found = entries(bucket.minio, bucket.name, versioned=versioned)
    contents = [by_spark(spark, half, tmp_path, kind) for half in (found[::2], found[1::2])]
    upload(bucket, place, written(bucket, tmp_path / "2", now - 2 * DAY, *contents, kind=kind, versioned=versioned))
    if not versioned:  # a version is what its own events say
        log.append([[removal(bucket, "put off")]])
    unfinished = f"reports/source/daily/{named(now)}/manifest.json"
    bucket.s3.put_object(Bucket=place, Key=unfinished, Body=b"{}")
    before = len(bucket.events())
    code, words = listed.again()
    assert code == 0, words
    expected = {keys[0]: "ObjectCreated:Put", keys[1]: "ObjectRemoved:Delete", "new": "ObjectCreated:Put"}
    if versioned:
        expected |= {keys[1]: "ObjectRemoved:DeleteMarkerCreated", "put off": "ObjectCreated:Put"}
    assert sorted(bucket.events()[before:]) == sorted((name, key) for key, name in expected.items())
    assert bucket.state.explained == 1
    assert bucket.mirrored() == set(bucket.keys()) - (set() if versioned else {"put off"})
    bucket.watch(inventory="")  # a listing goes on after an inventory
    listed.again()
    assert bucket.mirrored() == set(bucket.keys())


# As in https://docs.aws.amazon.com/AmazonS3/latest/userguide/storage-inventory-location.html, with each column that
# a report can have, and as S3 writes it today.
DOCUMENTED = (
    "message s3.inventory { required binary bucket (UTF8); required binary key (UTF8); optional binary version_id "
    "(UTF8); optional boolean is_latest; optional boolean is_delete_marker; optional int64 size; optional int64 "
    "last_modified_date (TIMESTAMP_MILLIS); optional binary e_tag (UTF8); optional binary storage_class (UTF8); "
    "optional boolean is_multipart_uploaded; optional int64 object_lock_retain_until_date (TIMESTAMP_MILLIS); "
    "optional binary checksum_algorithm (UTF8); }"
)
TYPES = (
    "bucket string, key string, version_id string, is_latest boolean, is_delete_marker boolean, size bigint, "
    "last_modified_date {time}, e_tag string, storage_class string, is_multipart_uploaded boolean, "
    "object_lock_retain_until_date {time}, checksum_algorithm string"
)
SPECIAL = [
    "a b",
    "a+b",
    "a%2Fb",
    "a%zz",
    "q\"uo'te",
    "line\nbreak\r\t",
    "ü/\U0001f600",
    " ends with blanks ",
    "null",
    "-",
    "\\",
]


def parquet(spark: SparkSession, rows: Sequence[Sequence[Any]], folder: Path, time: str) -> bytes:
    """One file of a report: times are milliseconds, with or without the annotation that says so."""
    frame = frame_of(spark, rows, TYPES.format(time="bigint"))
    columns = ("last_modified_date", "object_lock_retain_until_date")
    if time == "timestamp":
        frame = frame.withColumns({name: F.timestamp_millis(name) for name in columns})
    output = folder / uuid4().hex
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MILLIS")
    try:
        frame.coalesce(1).write.parquet(str(output))
    finally:
        spark.conf.unset("spark.sql.parquet.outputTimestampType")
    (file,) = output.glob("*.parquet")
    return file.read_bytes()


@pytest.mark.parametrize(("time", "schema"), [("timestamp", PARQUET), ("bigint", DOCUMENTED)])
def test_a_report_in_parquet_has_keys_as_they_are_and_markers_with_or_without_a_size(
    listed_by_spark: ListedBucket, spark: SparkSession, tmp_path: Path, time: str, schema: str
) -> None:
    """Unlike those in CSV its keys are not encoded; a version without an id is null, empty or `null`."""
    bucket, now = listed_by_spark.bucket, now_ms()
    modified = now - 9 * DAY + 123

    def row(key: str, version: str | None, at: int = 0, *, size: int | None = 1, etag: str | None = "e",
            latest: bool = True, marker: bool | None = False) -> tuple[Any, ...]:  # fmt: skip
        lock, what = (modified, "STANDARD") if etag else (None, None)
        return (bucket.name, key, version, latest, marker, size, modified + at, etag, what, False, lock, "CRC64NVME")

    def inventoried(name: str, moment: int, *parts: Sequence[Sequence[Any]]) -> str:
        contents = [parquet(spark, part, tmp_path, time) for part in parts]
        made = written(bucket, tmp_path / name, moment, *contents, kind="Parquet", versioned=True)
        made.content["fileSchema"] = schema
        return made.write()

    nulls = [row(key, version) for key, version in zip(SPECIAL, [None, "", "null"] * 4, strict=False)]
    markers = [
        row("gone", "v1", latest=False), row("gone", "v2", 1, size=None, etag=None, marker=True),
        row("back", "v3", size=0, etag="", latest=False, marker=True), row("back", "v4", 1, etag='"e"', marker=None),
    ]  # fmt: skip
    no_event_can_have = [row("x", "v" * 2_000), row("y", "v", size=-1), row("z", "v", 10**15)]
    place = inventoried("1", now - 3 * DAY, nulls[::2] + markers[:1], [], markers[1:] + nulls[1::2], no_event_can_have)
    bucket.watch(initial="events", versions="on", inventory=place)
    code, words = listed_by_spark.run()
    assert (code, words) == (0, "13 objects: 15 created, 0 changed, 0 removed, 0 explained, 0 undecided")
    assert bucket.mirrored() == {*SPECIAL, "back"}
    assert bucket.state.skipped == 3
    e = tables.events.c
    with bucket.database.reading() as connection:
        query = sa.select(e.key, e.version, e.time, e.name).where(e.key.in_(("gone", "back", "a b", "a+b")))
        events = {(row.key, row.version): (row.time, row.name) for row in connection.execute(query)}
    marked = "s3:ObjectRemoved:DeleteMarkerCreated"
    assert events == {
        ("a b", "null"): (modified, PUT), ("a+b", "null"): (modified, PUT), ("gone", "v1"): (modified, PUT),
        ("gone", "v2"): (modified + 1, marked), ("back", "v3"): (modified, marked), ("back", "v4"): (modified + 1, PUT),
    }  # fmt: skip

    later = inventoried("2", now - 2 * DAY + HOUR, [])  # what is gone has to be approved
    bucket.watch(versions="on", inventory=later)
    code, words = listed_by_spark.again()
    assert (code, "paused: the listing is empty" in words) == (0, True), words
    assert bucket.mirrored() == {*SPECIAL, "back"}


def test_after_a_pause_of_days_no_inventory_is_older_than_what_the_log_can_explain(
    listed_by_spark: ListedBucket, tmp_path: Path
) -> None:
    """It would bring back what was removed, since the log has no event of that any more."""
    bucket, now, w = listed_by_spark.bucket, now_ms(), tables.watched_buckets
    bucket.put("a")
    bucket.watch(initial="events", inventory=str(written(bucket, tmp_path / "1", now - 3 * DAY).manifest))
    assert listed_by_spark.run()[0] == 0
    bucket.sources.registry.pause(bucket.source, "")
    age(bucket, 20 * DAY)
    columns = ("began_at", "ended_at", "store_time", "due_at")
    with bucket.database.writing() as connection:
        connection.execute(w.update().values({name: w.c[name] - 20 * DAY for name in columns}))
    bucket.remove("a")  # which was reported, and has left the log
    bucket.put("b")
    for days, message in ((9, "which is too old: events since"), (5, "1 created")):
        old = written(bucket, tmp_path / str(days), now - days * DAY)
        bucket.watch(initial="events", inventory=str(old.manifest), max_removals="100")
        code, words = listed_by_spark.again()
        assert (code, message in words) == (int(days == 9), True), words
    assert bucket.mirrored() == {"b"}


LINE = '"{}","{}","5","2026-11-18T09:06:40.123Z","e","STANDARD","false"\n'


def refused(bucket: WatchedBucket, folder: Path) -> Iterator[tuple[str, dict[str, str], str]]:
    """Inventories, settings and what is wrong with each."""
    now, cases = now_ms(), iter(range(99))

    def of(*lines: str, moment: int = now - DAY) -> Report:
        content = gzip.compress("".join(LINE.format(bucket.name, key) for key in lines).encode())
        return written(bucket, folder / str(next(cases)), moment, content)

    def changed(change: Callable[[Report], Any], **more: Any) -> str:
        made = of("a", "b", **more)
        change(made)
        return str(made.manifest)

    def manifest(**content: Any) -> Callable[[Report], Any]:
        return lambda made: (made.content.update(content), made.write())

    no_etag = "Bucket, Key, Size, LastModifiedDate, StorageClass, IsMultipartUploaded, X"
    yield changed(manifest(sourceBucket="other")), {}, f"is an inventory of other, not of {bucket.name}"
    yield changed(lambda made: made.files[0].unlink()), {}, "cannot be read"
    yield changed(lambda made: made.files[0].write_bytes(made.files[0].read_bytes()[:-9])), {}, "is damaged: its MD5"
    yield changed(lambda made: made.manifest.write_text("{}")), {}, "does not match the manifest.checksum beside it"
    yield changed(manifest(fileSchema=no_etag)), {}, "has no column e_tag"
    yield changed(lambda _: None), {"versions": "on"}, "lists current versions only"
    yield changed(lambda _: None, moment=now - 8 * DAY), {}, "which is too old: events since"
    yield changed(lambda _: None, moment=now + 3 * HOUR), {}, "which is yet to come: the clock of its store is ahead"
    cut = gzip.compress((LINE.format(bucket.name, "a") + f'"{bucket.name}","b","5').encode())
    yield str(written(bucket, folder / "cut", now - DAY, cut).manifest), {}, "1 of its lines cannot be read"
    yield str(of("a", "b", "a").manifest), {}, "it has the entry 'a' twice"
    yield changed(manifest(files=[])), {}, "names no files: if the bucket is empty"
    yield changed(lambda made: made.manifest.with_name("manifest.checksum").write_text("")), {}, "does not match"
    yield str(of("a", "b").write_as("Parquet")), {}, "Job aborted due to stage failure"
    yield str(folder / "cut"), {}, "has no complete report of S3 Inventory"
    yield f"s3://{bucket.name}/none/manifest.json", {}, "cannot be read: No such file"
    yield f"s3://{bucket.name}/none/", {"secret_key": "wrong"}, "SignatureDoesNotMatch"


def test_an_inventory_that_cannot_be_believed_ends_the_run_without_an_event(
    listed_by_spark: ListedBucket, tmp_path: Path
) -> None:
    listed, bucket = listed_by_spark, listed_by_spark.bucket
    for place, settings, message in refused(bucket, tmp_path):
        bucket.watch(initial="events", inventory=place, **settings)
        code, words = listed.again()
        assert (code, message in words) == (1, True), f"{message}: {words}"
    assert bucket.events() == []
    assert not bucket.state.complete


def test_an_inventory_of_a_store_whose_clock_is_ahead_is_refused(listed_by_spark: ListedBucket, tmp_path: Path) -> None:
    """It would seem to be younger than it is, also when it is read so late that its time is in the past."""
    from spark_jobs.listings.source_inventory import SourceInventory

    bucket, place, now = listed_by_spark.bucket, f"reports-{uuid4().hex[:8]}", now_ms()
    bucket.s3.create_bucket(Bucket=place)
    bucket.put("a")
    upload(bucket, place, written(bucket, tmp_path, now - DAY))
    found = inventory.manifest(f"s3://{place}/reports/source/daily/", lambda _: bucket.minio.boto3())
    assert abs(found.answered - now) < 60_000

    def check(by_database: int) -> None:
        taken = SourceInventory(
            found.location, found.begun, found.written, inventory.MARGIN, False, lambda _: None, found.answered
        )  # type: ignore[arg-type]  # nothing reads it
        taken.check_age(0, by_database, 0)

    check(now - HOUR)
    with pytest.raises(BadListing, match=r"may not be true: the clock of its store is ahead .* by 1[78]\d min"):
        check(now - 3 * HOUR)


def test_a_report_is_read_when_the_grace_of_what_it_shows_is_over(
    listed_by_spark: ListedBucket, tmp_path: Path
) -> None:
    listed, bucket = listed_by_spark, listed_by_spark.bucket
    bucket.put("a")
    made = written(bucket, tmp_path, now_ms() - HOUR)
    source = bucket.watch(initial="events", inventory=str(made.manifest), grace="1h")
    code, words = listed.run()
    assert (code, words.endswith("is read when its grace is over"), bucket.events()) == (0, True, [])
    resumes = bucket.sources.stored(source).resume_at - round(made.manifest.stat().st_mtime * 1000)
    assert abs(resumes - HOUR) < 2
    bucket.watch(initial="events", inventory=str(made.manifest), grace="0")
    assert listed.again()[0] == 0
    assert bucket.events() == [("ObjectCreated:Put", "a")]


@pytest.fixture
def catalog() -> Iterator[services.IcebergRest]:
    with services.iceberg_rest() as server:
        yield server


# As https://docs.aws.amazon.com/AmazonS3/latest/userguide/metadata-tables-inventory-schema.html has them.
TABLE = (
    "bucket string, key string, sequence_number string, version_id string, is_delete_marker boolean, size bigint, "
    "last_modified_date timestamp_ntz, e_tag string, storage_class string, is_multipart boolean, "
    "encryption_status string, is_bucket_key_enabled boolean, kms_key_arn string, checksum_algorithm string, "
    "object_tags map<string, string>, user_metadata map<string, string>"
)


def test_the_live_table_of_s3_metadata_is_a_listing_with_versions(
    listed_by_spark: ListedBucket, spark: SparkSession, catalog: services.IcebergRest
) -> None:
    """The newest version is that of the greatest sequence number, whatever the times are."""
    listed = listed_by_spark
    listed.bucket = WatchedBucket(listed.bucket.minio, listed.bucket.database, versioned=True, **NIGHTLY)
    bucket, namespace = listed.bucket, f"made.`b_{listed.bucket.name}`"
    spark.conf.set("spark.sql.catalog.made", "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set("spark.sql.catalog.made.type", "rest")
    spark.conf.set("spark.sql.catalog.made.uri", catalog.url)
    spark.conf.set("spark.sql.catalog.made.cache-enabled", "false")
    spark.sql(f"CREATE NAMESPACE {namespace}")

    def put(*rows: tuple[str, str, str, bool]) -> None:
        values = ", ".join(
            f"('{bucket.name}', '{key}', '{order}', '{version}', {marker}, {0 if marker else 1}, "
            f"TIMESTAMP_NTZ '2026-11-18 09:06:40.5', {'null' if marker else repr('e' + version)}, 'STANDARD', false, "
            "'SSE-S3', false, null, 'CRC64NVME', map(), map('a', 'b'))"
            for key, order, version, marker in rows
        )
        spark.sql(f"INSERT INTO {namespace}.inventory VALUES {values}")

    spark.sql(f"CREATE TABLE {namespace}.inventory ({TABLE}) USING iceberg")
    bucket.watch(initial="events", inventory=catalog.url)
    code, words = listed.run()
    assert (code, "has no rows yet" in words) == (1, True), words
    put(("a", "02", "v2", False), ("a", "01", "v1", False), ("b", "01", "v3", False), ("b", "02", "v4", True))
    code, words = listed.again()
    assert (code, words) == (0, "3 objects: 4 created, 0 changed, 0 removed, 0 explained, 0 undecided")
    assert bucket.mirrored() == {"a"}
    assert bucket.events()[:2] == [("ObjectCreated:Put", "a")] * 2
    e = tables.events.c
    with bucket.database.reading() as connection:
        query = sa.select(e.version, e.time).where(e.key == "a").order_by(e.sequencer)
        assert connection.execute(query).all() == [("v1", 1_794_992_800_500), ("v2", 1_794_992_800_500)]
    assert listed.again()[0] == 0  # nothing has changed since

    age(bucket, 5 * HOUR)
    spark.sql(f"DELETE FROM {namespace}.inventory WHERE version_id IN ('v2', 'v4')")
    put(("c", "01", "v5", False))
    spark.sql(f"CALL made.system.rewrite_data_files(table => '`b_{bucket.name}`.inventory', "
              "options => map('min-input-files', '1', 'rewrite-all', 'true'))")  # fmt: skip
    code, words = listed.again()
    assert (code, words) == (0, "3 objects: 1 created, 0 changed, 2 removed, 0 explained, 0 undecided")
    assert bucket.mirrored() == {"a", "b", "c"}

    for column, message in (("record_type", "is a journal of changes"), ("log_position", "made of the event log")):
        spark.sql(f"ALTER TABLE {namespace}.inventory ADD COLUMNS ({column} string)")
        spark.sql(f"INSERT INTO {namespace}.inventory (bucket, key, {column}) VALUES ('x', 'y', 'z')")
        code, words = listed.again()
        assert (code, message in words) == (1, True), words
        spark.sql(f"ALTER TABLE {namespace}.inventory DROP COLUMN {column}")
