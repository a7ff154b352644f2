"""S3 Inventory reports, written as AWS documents them, are read completely or not at all."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from app.listings.errors import BadListing
from spark_jobs.listings.inventory import manifest
from spark_jobs.listings.listing import from_mc
from tests import services
from tests.support.frames import frame_of
from tests.support.listings import fill, objects_of

# The columns as AWS's guide has them for each format; what is not asked for is left out of a report.
CSV = (
    "Bucket, Key, VersionId, IsLatest, IsDeleteMarker, Size, LastModifiedDate, ETag, StorageClass, IsMultipartUploaded"
)
ORC = (
    "struct<bucket:string,key:string,version_id:string,is_latest:boolean,is_delete_marker:boolean,size:bigint,"
    "last_modified_date:timestamp,e_tag:string,storage_class:string,is_multipart_uploaded:boolean>"
)
PARQUET = (
    "message s3.inventory { required binary bucket (STRING); required binary key (STRING); "
    "optional binary version_id (STRING); optional boolean is_latest; optional boolean is_delete_marker; "
    "optional int64 size; optional int64 last_modified_date (TIMESTAMP(MILLIS,true)); optional binary e_tag (STRING); "
    "optional binary storage_class (STRING); optional boolean is_multipart_uploaded; }"
)
OF_VERSIONS = (
    "VersionId, IsLatest, IsDeleteMarker, ",
    "version_id:string,is_latest:boolean,is_delete_marker:boolean,",
    "optional binary version_id (STRING); optional boolean is_latest; optional boolean is_delete_marker; ",
)
BEGUN = 1_795_000_000_000


def entries(minio: services.MinIO, bucket: str, *, versioned: bool) -> list[dict[str, Any]]:
    """Return the entries of an inventory of the bucket, by the column names in ORC and Parquet."""
    client, found = minio.boto3(), []
    try:
        for page in client.get_paginator("list_object_versions").paginate(Bucket=bucket):
            for one in (*page.get("Versions", ()), *page.get("DeleteMarkers", ())):
                is_marker = "Size" not in one
                if versioned or not is_marker:
                    of_version = {"is_latest": one["IsLatest"], "is_delete_marker": is_marker}
                    version = {"version_id": None if one["VersionId"] == "null" else one["VersionId"]} | of_version
                    found.append(
                        {"bucket": bucket, "key": one["Key"]}
                        | (version if versioned else {})
                        | {"size": one.get("Size"), "last_modified_date": one["LastModified"]}
                        | {"e_tag": None if is_marker else one["ETag"].strip('"')}
                        | {"storage_class": "STANDARD", "is_multipart_uploaded": False}
                    )
    finally:
        client.close()
    return found


def as_csv(found: Sequence[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    lines = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    for one in found:
        time = one["last_modified_date"].strftime("%Y-%m-%dT%H:%M:%S.") + f"{one['last_modified_date']:%f}"[:3] + "Z"
        texts = one | {"key": quote_plus(one["key"], safe="/"), "last_modified_date": time}
        lines.writerow(str(value).lower() if isinstance(value, bool) else value for value in texts.values())
    return gzip.compress(text.getvalue().encode())


def by_spark(spark: SparkSession, found: Sequence[dict[str, Any]], folder: Path, kind: str) -> bytes:
    """One file of that kind."""
    types = {"size": "bigint", "last_modified_date": "timestamp"}
    schema = ", ".join(
        f"{name} {'boolean' if name.startswith('is_') else types.get(name, 'string')}" for name in found[0]
    )
    frame = frame_of(spark, [tuple(one.values()) for one in found], schema)
    output, times = folder / uuid4().hex, "spark.sql.parquet.outputTimestampType"
    spark.conf.set(times, "TIMESTAMP_MILLIS")  # as S3 does
    try:
        getattr(frame.coalesce(1).write, kind.lower())(str(output))
    finally:
        spark.conf.unset(times)
    (file,) = output.glob(f"*.{kind.lower()}")
    return file.read_bytes()


@dataclass
class Report:
    """A report as it lies in its bucket, below `folder`."""

    folder: Path
    content: dict[str, Any]

    @property
    def manifest(self) -> Path:
        return self.folder / "reports/source/daily/2026-11-18T09-06Z/manifest.json"

    @property
    def files(self) -> list[Path]:
        return [self.folder / each["key"] for each in self.content["files"]]

    def write(self) -> str:
        """Write the manifest and its checksum; where it is."""
        self.manifest.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.content, indent=4).encode()
        self.manifest.write_bytes(text)
        self.manifest.with_name("manifest.checksum").write_text(hashlib.md5(text).hexdigest())
        return str(self.manifest)


def report(folder: Path, bucket: str, kind: str, contents: Sequence[bytes], *, versioned: bool) -> Report:
    schema = {"CSV": CSV, "ORC": ORC, "Parquet": PARQUET}[kind]
    if not versioned:
        for columns in OF_VERSIONS:
            schema = schema.replace(columns, "")
    written = Report(folder, {
        "sourceBucket": bucket, "destinationBucket": "arn:aws:s3:::reports", "version": "2016-11-30",
        "creationTimestamp": str(BEGUN), "fileFormat": kind, "fileSchema": schema, "files": [],
    })  # fmt: skip
    for content in contents:
        key = f"reports/source/daily/data/{uuid4()}.{'csv.gz' if kind == 'CSV' else kind.lower()}"
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        (folder / key).write_bytes(content)
        digest = hashlib.md5(content).hexdigest()
        written.content["files"].append({"key": key, "size": len(content), "MD5checksum": digest})
    written.write()
    return written


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
        read = manifest(str(written.manifest))
        assert (read.begun, read.versioned) == (BEGUN, versioned)
        listing = read.listing(spark, bucket)
        assert objects_of(listing) == expected
        assert listing.unreadable_count == 0
        assert listing.entries is not None
        assert listing.entries.count() == by_mc.entries.count() == len(found)
        assert {row["key"]: row["modified"] for row in listing.frame.collect()} == {
            row["key"]: row["modified"] for row in by_mc.frame.collect()
        }
    if versioned:
        assert objects_of(read.listing(spark, bucket, versions=False)) == expected
    else:
        with pytest.raises(BadListing, match="lists current versions only"):
            read.listing(spark, bucket, versions=True)


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
    read = manifest(place, at_minio.url)
    assert set(objects_of(read.listing(spark, "b", endpoint=at_minio.url))) == {"one", "two"}
    client.remove_object("reports", small.content["files"][1]["key"])
    with pytest.raises(BadListing, match=r"csv.gz cannot be read: .*404.*Nothing of the report was read"):
        read.listing(spark, "b", endpoint=at_minio.url)


def test_a_copy_is_found_by_the_ends_of_its_keys(spark: SparkSession, small: Report, tmp_path: Path) -> None:
    (tmp_path / "reports/source").rename(tmp_path / "copied")
    read = manifest(str(tmp_path / "copied/daily/2026-11-18T09-06Z/manifest.json"))
    assert set(objects_of(read.listing(spark, "b"))) == {"one", "two"}


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
            frame = manifest(str(written.manifest)).listing(spark, "b").frame
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
    listing = manifest(str(written.manifest)).listing(spark, "b")
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
        manifest(str(small.manifest)).listing(spark, "b")


def test_a_report_of_another_bucket_is_refused(spark: SparkSession, small: Report) -> None:
    with pytest.raises(BadListing, match="is an inventory of b, not of other"):
        manifest(str(small.manifest)).listing(spark, "other")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sourceBucket": ""}, "sourceBucket is missing or empty"),
        ({"files": []}, "files is missing or empty"),
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
        manifest(small.write())


def test_a_file_that_is_no_manifest_is_refused(small: Report, tmp_path: Path) -> None:
    with pytest.raises(BadListing, match="No such file"):
        manifest(str(tmp_path / "none.json"))
    small.manifest.write_text(small.manifest.read_text() + " ")
    with pytest.raises(BadListing, match=r"does not match the manifest\.checksum"):
        manifest(str(small.manifest))
    small.manifest.with_name("manifest.checksum").unlink()
    for text, message in (("{", "is not JSON"), ("[]", "creationTimestamp is missing")):
        small.manifest.write_text(text)
        with pytest.raises(BadListing, match=message):
            manifest(str(small.manifest))
