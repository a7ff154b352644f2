"""S3 Inventory reports, written as AWS documents them, are read completely or not at all."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from app.listings.inventory import manifest
from app.listings.limits import BadListing
from spark_jobs.listings.inventory import listing_of
from spark_jobs.listings.listing import from_mc
from spark_jobs.listings.s3_listing import Bucket
from tests import services
from tests.support.inventories import BEGUN, Report, as_csv, by_spark, entries, nowhere, report
from tests.support.listings import fill, objects_of


@pytest.mark.nightly(
    "reports of one format each, damaged, fetched and copied; buckets that are listed, with and without `mc`"
)
@pytest.mark.parametrize("versioned", [False, True])
def test_a_report_has_the_same_entries_as_mc(
    spark: SparkSession, at_minio: services.MinIO, tmp_path: Path, versioned: bool
) -> None:
    bucket = f"b-{uuid4().hex[:8]}"
    expected = fill(at_minio, bucket, versioned=versioned)
    listed = tmp_path / "listing.json"
    lines = at_minio.mc("ls", "--recursive", *(["--versions"] if versioned else []), f"m/{bucket}")
    listed.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    by_mc = from_mc(spark, str(listed), bucket, versioned=versioned)
    assert objects_of(by_mc) == expected
    assert by_mc.entries is not None

    found = entries(at_minio, bucket, versioned=versioned)
    halves = found[::2], found[1::2]
    for kind in ("CSV", "ORC", "Parquet"):
        contents = [as_csv(half) if kind == "CSV" else by_spark(spark, half, tmp_path, kind) for half in halves]
        written = report(tmp_path / kind, bucket, kind, contents, versioned=versioned)
        read = manifest(str(written.manifest), nowhere)
        assert (read.begun, read.versioned) == (BEGUN, versioned)
        listing = listing_of(spark, read, bucket, nowhere)
        assert objects_of(listing) == expected
        assert listing.unreadable_count == 0
        assert listing.entries is not None
        assert listing.entries.count() == by_mc.entries.count() == len(found)
        assert {row["key"]: row["modified"] for row in listing.frame.collect()} == {
            row["key"]: row["modified"] for row in by_mc.frame.collect()
        }
    if versioned:
        assert objects_of(listing_of(spark, read, bucket, nowhere, versions=False)) == expected
    else:
        with pytest.raises(BadListing, match="lists current versions only"):
            listing_of(spark, read, bucket, nowhere, versions=True)


@pytest.fixture
def small(tmp_path: Path) -> Report:
    """A report of two objects in two files."""
    line = b'"b","%s","5","2026-11-18T09:06:40.123Z","e","STANDARD","false"\n'
    return report(tmp_path, "b", "CSV", [gzip.compress(line % key) for key in (b"one", b"two")], versioned=False)


def test_a_report_in_s3_is_fetched(spark: SparkSession, at_minio: services.MinIO, small: Report) -> None:
    client = at_minio.client()
    client.make_bucket("reports")
    for file in (*small.files, small.manifest, small.manifest.with_name("manifest.checksum")):
        client.fput_object("reports", str(file.relative_to(small.folder)), str(file))
    place = f"s3://reports/{small.manifest.relative_to(small.folder)}"
    storage = partial(Bucket.from_boto3, endpoint=at_minio.url)
    read = manifest(place, lambda name: storage(name).client())
    assert set(objects_of(listing_of(spark, read, "b", storage))) == {"one", "two"}
    client.remove_object("reports", small.content["files"][1]["key"])
    with pytest.raises(BadListing, match=r"csv.gz cannot be read: .*404.*Nothing of the report was read"):
        listing_of(spark, read, "b", storage)


def test_a_copy_is_found_by_the_ends_of_its_keys(spark: SparkSession, small: Report, tmp_path: Path) -> None:
    (tmp_path / "reports/source").rename(tmp_path / "copied")
    read = manifest(str(tmp_path / "copied/daily/2026-11-18T11-06Z/manifest.json"), nowhere)
    assert set(objects_of(listing_of(spark, read, "b", nowhere))) == {"one", "two"}


def test_times_in_orc_do_not_depend_on_the_machines_zone(spark: SparkSession, tmp_path: Path) -> None:
    zones = spark.sparkContext._jvm.java.util.TimeZone  # type: ignore[union-attr]  # of a session
    own = zones.getDefault()
    times = (1_794_992_800_123, 1_774_751_400_000)  # the second in the hour that Berlin skipped
    columns = "'b' bucket, '{0}' key, 5L size, timestamp_millis({0}) last_modified_date, 'e' e_tag"
    try:
        zones.setDefault(zones.getTimeZone("UTC"))  # where S3 writes
        selected = " UNION ALL ".join(f"SELECT {columns.format(time)}" for time in times)
        spark.sql(selected).coalesce(1).write.orc(str(tmp_path / "o"))
        (file,) = (tmp_path / "o").glob("*.orc")
        written = report(tmp_path, "b", "ORC", [file.read_bytes()], versioned=False)
        for zone in ("Asia/Tokyo", "Europe/Berlin"):
            zones.setDefault(zones.getTimeZone(zone))
            frame = listing_of(spark, manifest(str(written.manifest), nowhere), "b", nowhere).frame
            assert sorted(row["modified"] for row in frame.collect()) == sorted(times)
    finally:
        zones.setDefault(own)


def test_lines_that_cannot_be_read_are_counted_and_shown(spark: SparkSession, tmp_path: Path) -> None:
    good = '"b","%s","v","true","false","5","2026-11-18T09:06:40.123Z","e","STANDARD","false"'
    bad = [
        '"b","cut","v","tr',
        '"b","short","v"',
        good % "long" + ',"more"',
        good.replace('"b"', '"other"') % "elsewhere",
        good % "%zz",
        good.replace('"true"', '""') % "latest+or+not",
        good.replace('"5"', '"many"') % "size",
        good.replace("2026", "y") % "time",
    ]
    lines = [good % "a%2Fb+c", good.replace('"5"', '""').replace('"false","', '"true","') % "gone", *bad]
    content = gzip.compress("".join(f"{line}\n" for line in lines).encode())
    written = report(tmp_path, "b", "CSV", [content], versioned=True)
    listing = listing_of(spark, manifest(str(written.manifest), nowhere), "b", nowhere)
    assert objects_of(listing) == {"a/b c": ("e", 5, "v")}
    shown = [json.loads(row["line"]) for row in listing.unreadable.collect()]
    keys = {one["encoded_key"] for one in shown if "broken_line" not in one}
    assert keys == {"elsewhere", "%zz", "latest+or+not", "size", "time"}
    assert [one["broken_line"] for one in shown if "broken_line" in one] == bad[:3]


def _lose(written: Report) -> None:
    written.files[1].unlink()


def _damage(written: Report) -> None:
    content = bytearray(written.files[0].read_bytes())
    content[-1] ^= 1
    written.files[0].write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "message"), [(_lose, "cannot be read: .*No such file"), (_damage, "is damaged: its MD5")]
)
def test_a_report_that_is_not_whole_is_not_read(
    spark: SparkSession, small: Report, damage: Callable[[Report], None], message: str
) -> None:
    damage(small)
    with pytest.raises(BadListing, match=f"{message}.*Nothing of the report was read"):
        listing_of(spark, manifest(str(small.manifest), nowhere), "b", nowhere)


def test_a_report_of_another_bucket_is_refused(spark: SparkSession, small: Report) -> None:
    with pytest.raises(BadListing, match="is an inventory of b, not of other"):
        listing_of(spark, manifest(str(small.manifest), nowhere), "other", nowhere)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sourceBucket": ""}, "sourceBucket is missing or empty"),
        ({"files": []}, "names no files: if the bucket is empty"),
        ({"files": [{"key": "k"}]}, "MD5checksum is missing"),
        ({"files": ["k"]}, "key is missing"),
        ({"creationTimestamp": "yesterday"}, "milliseconds since 1970"),
        ({"fileFormat": "Avro"}, "fileFormat Avro is unknown"),
        ({"fileSchema": "Size, ETag"}, "no bucket and key"),
    ],
)
def test_a_manifest_says_what_is_wrong_with_it(small: Report, change: dict[str, Any], message: str) -> None:
    small.content |= change
    with pytest.raises(BadListing, match=message):
        manifest(small.write(), nowhere)


def test_a_file_that_is_no_manifest_is_refused(small: Report, tmp_path: Path) -> None:
    with pytest.raises(BadListing, match="No such file"):
        manifest(str(tmp_path / "none.json"), nowhere)
    small.manifest.write_text(small.manifest.read_text() + " ")
    with pytest.raises(BadListing, match=r"does not match the manifest\.checksum"):
        manifest(str(small.manifest), nowhere)
    small.manifest.with_name("manifest.checksum").unlink()
    for text, message in (("{", "is not JSON"), ("[]", "creationTimestamp is missing")):
        small.manifest.write_text(text)
        with pytest.raises(BadListing, match=message):
            manifest(str(small.manifest), nowhere)
