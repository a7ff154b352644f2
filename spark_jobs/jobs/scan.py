"""Find in a listing what MinIO's scanner warns of: objects with many or large versions, folders with many folders.

The events are MinIO's (§1.1, §1.4) and go where rules send them. MinIO counts the versions and then leaves the number
out; here it is in `responseElements`, under the names that MinIO's source has for it. Two things differ on purpose:
the bucket of `s3:Scanner:BigPrefix` is the bucket, where MinIO puts the path of one of its drives; and the folders in a
folder are counted, where MinIO counts the directories on a drive, and objects are directories too.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from app.events.minio_json import encode_key, timestamp
from app.listings.limits import BadListing
from spark_jobs.api_client import BATCH_SIZE, Api, batches
from spark_jobs.frames import WARNINGS
from spark_jobs.listings.listing_source import ListingSource

MANY_VERSIONS, LARGE_VERSIONS, BIG_PREFIX = (
    "s3:Scanner:ManyVersions",
    "s3:Scanner:LargeVersions",
    "s3:Scanner:BigPrefix",
)
_NAMES = (MANY_VERSIONS, LARGE_VERSIONS, BIG_PREFIX)
SOURCE = "bucketwire:scanner"
_DAY = 86_400_000
_NANOSECONDS = 1_000_000  # in a millisecond


@dataclass(frozen=True, slots=True)
class ScanLimits:
    """The limits beyond which a scan warns. MinIO's guide of 2025 has these numbers, its source has 100 versions."""

    versions: int = 1_000  # of an object, delete markers included: more than this many
    size: int = 1 << 40  # bytes of all versions of an object: at least this many
    folders: int = 50_000  # directly in a folder: more than this many


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanConfig(ListingSource):
    """Which bucket to scan."""

    limits: ScanLimits = ScanLimits()
    rate: float = 1000.0  # events per second


@dataclass(frozen=True, slots=True)
class ScanResult:
    """The result of a scan: the number of warnings by name, and the sum of the API's receipts."""

    warnings: Mapping[str, int]
    receipt: Mapping[str, int]
    problem: str


def warnings_of(entries: DataFrame, limits: ScanLimits) -> DataFrame:
    """Return the WARNINGS of ENTRIES."""
    return _object_warnings(entries, limits).union(_folder_warnings(entries, limits))


def warning_event(warning: Mapping[str, Any], bucket: str, listed_at: int) -> dict[str, Any]:
    """Return the event of a warning; `listed_at` is when the bucket was listed, in milliseconds since 1970.

    Its time is the start of that day: the same warning with the same numbers is the same event all day.
    """
    day = listed_at - listed_at % _DAY
    s3_object: dict[str, Any] = {"key": encode_key(warning["key"])}
    numbers = {}
    if warning["name"] == BIG_PREFIX:
        s3_object["size"] = warning["folders"]
    elif warning["name"] == MANY_VERSIONS:
        numbers = {"x-minio-versions": str(warning["versions"])}
    else:
        numbers = {"x-minio-versions-count": str(warning["versions"]), "x-minio-versions-size": str(warning["size"])}
    s3_object["sequencer"] = f"{day * _NANOSECONDS:X}"
    return {
        "eventVersion": "2.0",
        "eventSource": SOURCE,
        "awsRegion": "",
        "eventTime": timestamp(day),
        "eventName": warning["name"],
        "userIdentity": {"principalId": ""},
        "requestParameters": None,
        "responseElements": numbers,
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": "Config",
            "bucket": {"name": bucket, "ownerIdentity": {"principalId": ""}, "arn": f"arn:aws:s3:::{bucket}"},
            "object": s3_object,
        },
        "source": {"host": "", "port": "", "userAgent": "Scanner"},
    }


@contextmanager
def found_warnings(spark: SparkSession, config: ScanConfig) -> Iterator[tuple[DataFrame, str]]:
    """Find the WARNINGS, in the order of keys, and why the listing may be incomplete ("" for no reason).

    Raises `BadListing`, and what Spark and S3 raise.
    """
    config.check_age()
    listing = config.list_bucket(spark, tasks=config.tasks(spark))
    if listing.entries is None:
        raise BadListing(f"{config.listing} lists the newest versions only; a scan needs all versions")
    entries = listing.entries.persist(StorageLevel.DISK_ONLY)
    warnings = warnings_of(entries, config.limits).persist(StorageLevel.DISK_ONLY)
    warnings.count()  # a range that cannot be listed ends the scan before a warning is sent
    try:
        yield warnings.orderBy("key", "name"), listing.describe_problem(listing.unreadable_count)
    finally:
        warnings.unpersist()
        entries.unpersist()


def scan(spark: SparkSession, config: ScanConfig, api: Api, now: int) -> ScanResult:
    """Scan the bucket and post one event per warning. Raises what `found_warnings` raises, and `NotPosted`."""
    receipt, numbers, listed_at = Counter[str](), Counter[str](), config.listed_at or now
    with found_warnings(spark, config) as (warnings, problem), api.to_matching_targets(rate=config.rate) as sender:
        for batch in batches((row.asDict() for row in warnings.toLocalIterator()), BATCH_SIZE):
            receipt += sender.send([warning_event(warning, config.bucket, listed_at) for warning in batch])
            numbers.update(warning["name"] for warning in batch)
    return ScanResult({name: numbers[name] for name in _NAMES}, receipt, problem)


def _object_warnings(entries: DataFrame, limits: ScanLimits) -> DataFrame:
    objects = entries.groupBy("key").agg(
        F.count(F.lit(1)).alias("versions"), F.sum(F.when(F.col("marker"), 0).otherwise(F.col("size"))).alias("size")
    )
    names = F.array_compact(
        F.array(
            F.when(F.col("versions") > limits.versions, MANY_VERSIONS),
            F.when(F.col("size") >= limits.size, LARGE_VERSIONS),
        )
    )
    warnings = objects.select(F.explode(names).alias("name"), "key", "versions", "size")
    return warnings.withColumn("folders", F.lit(None).cast("bigint")).select(*WARNINGS.names)


def _folder_warnings(entries: DataFrame, limits: ScanLimits) -> DataFrame:
    parts = F.split("key", "/")
    depth = F.size(parts) - 1
    folders = F.when(
        depth > 0, F.transform(F.sequence(F.lit(1), depth), lambda end: F.array_join(F.slice(parts, 1, end), "/"))
    )
    distinct = entries.select(F.explode(folders).alias("folder")).distinct()
    # The parent of a folder is its path without the last name: `a/` of `a/b/`, "" of `a/`.
    parents = distinct.select(F.regexp_replace("folder", "[^/]*$", "").alias("key"))
    big = parents.groupBy("key").agg(F.count(F.lit(1)).alias("folders")).where(F.col("folders") > limits.folders)
    null = F.lit(None).cast("bigint")
    return big.select(F.lit(BIG_PREFIX).alias("name"), "key", null.alias("versions"), null.alias("size"), "folders")
