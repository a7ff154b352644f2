"""Reports of S3 Inventory, written as AWS documents them."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus
from uuid import uuid4

from pyspark.sql import SparkSession

from spark_jobs.listings.s3_listing import Bucket
from tests import services
from tests.support.frames import frame_of

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


def nowhere(bucket: str) -> Bucket:
    """No report here is in a bucket."""
    raise AssertionError(bucket)


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
    name: str = "2026-11-18T11-06Z"

    @property
    def manifest(self) -> Path:
        return self.folder / "reports/source/daily" / self.name / "manifest.json"

    @property
    def files(self) -> list[Path]:
        return [self.folder / each["key"] for each in self.content["files"]]

    def write_as(self, kind: str) -> str:
        """Have the manifest say that its files are of this kind."""
        self.content["fileFormat"] = kind
        return self.write()

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
