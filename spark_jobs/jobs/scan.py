"""What MinIO's scanner warns of, found in a listing: objects of many or large versions, folders of many folders.

The events are MinIO's (§1.1, §1.4) and go where rules lead them. MinIO counts the versions and then leaves the number
out; here it stands in `responseElements`, under the names that MinIO's source has for it. Two things differ on purpose:
the bucket of `s3:Scanner:BigPrefix` is the bucket, where MinIO puts the path of one of its drives, and a folder's
folders are counted, where MinIO counts the directories on a drive, which its objects are too.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from app.events.minio_json import encode_key, timestamp
from spark_jobs.api_client import PORTION, Api, portions
from spark_jobs.listings.listing import BadListing
from spark_jobs.listings.listing_source import Source
from spark_jobs.schemas import EXCESSES

MANY, LARGE, BIG = "s3:Scanner:ManyVersions", "s3:Scanner:LargeVersions", "s3:Scanner:BigPrefix"
SOURCE = "bucketwire:scanner"
_TASKS = 2  # ranges of keys for each processor, as they are not equally long
_DAY = 86_400_000
_NANOSECONDS = 1_000_000  # in a millisecond


@dataclass(frozen=True, slots=True)
class Limits:
    """From where on it is too much. The guide of 2025 has these numbers, MinIO's source has 100 versions."""

    versions: int = 1_000  # of an object, markers too: so many or more
    size: int = 1 << 40  # bytes of all versions of an object: so many or more
    folders: int = 50_000  # directly in a folder: more than so many


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanConfig(Source):
    """What to scan."""

    limits: Limits = Limits()
    rate: float = 1000.0  # events a second


@dataclass(frozen=True, slots=True)
class ScanResult:
    """What a scan came to: how many events by name, and what the API's receipts said of them."""

    found: Mapping[str, int]
    receipt: Mapping[str, int]
    problem: str


def excesses(entries: DataFrame, limits: Limits) -> DataFrame:
    """EXCESSES of ENTRIES."""
    return _of_objects(entries, limits).union(_of_folders(entries, limits))


def record(excess: Mapping[str, Any], bucket: str, looked: int) -> dict[str, Any]:
    """The event that tells of an excess; `looked` is when it was seen, in milliseconds since 1970.

    It is of that day's beginning: told again on the same day with the same numbers, it is the same event.
    """
    day = looked - looked % _DAY
    thing: dict[str, Any] = {"key": encode_key(excess["key"])}
    numbers = {}
    if excess["name"] == BIG:
        thing["size"] = excess["folders"]
    elif excess["name"] == MANY:
        numbers = {"x-minio-versions": str(excess["versions"])}
    else:
        numbers = {"x-minio-versions-count": str(excess["versions"]), "x-minio-versions-size": str(excess["size"])}
    thing["sequencer"] = f"{day * _NANOSECONDS:X}"
    return {
        "eventVersion": "2.0",
        "eventSource": SOURCE,
        "awsRegion": "",
        "eventTime": timestamp(day),
        "eventName": excess["name"],
        "userIdentity": {"principalId": ""},
        "requestParameters": None,
        "responseElements": numbers,
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": "Config",
            "bucket": {"name": bucket, "ownerIdentity": {"principalId": ""}, "arn": f"arn:aws:s3:::{bucket}"},
            "object": thing,
        },
        "source": {"host": "", "port": "", "userAgent": "Scanner"},
    }


def look(spark: SparkSession, wanted: ScanConfig) -> tuple[list[dict[str, Any]], str]:
    """Every excess, in the order of keys, and why there may be more, "" if there is no reason to think so.

    Raises `BadListing`, and what Spark and S3 raise.
    """
    listing = wanted.listed(spark, tasks=_TASKS * spark.sparkContext.defaultParallelism)
    if listing.entries is None:
        raise BadListing(f"{wanted.listing} tells of the newest versions only")
    entries = listing.entries.persist(StorageLevel.DISK_ONLY)
    found = [row.asDict() for row in excesses(entries, wanted.limits).orderBy("key", "name").collect()]
    entries.unpersist()
    bad = listing.bad_count
    said = [listing.problem, f"{bad} lines of the listing could not be read." if bad else ""]
    return found, " ".join(filter(None, said))


def scan(spark: SparkSession, wanted: ScanConfig, api: Api, now: int) -> ScanResult:
    """Look, and post an event for each excess. Raises as `look` does, and `NotPosted`."""
    found, problem = look(spark, wanted)
    receipt = Counter[str]()
    with api.to_all(rate=wanted.rate) as sender:
        for portion in portions(found, PORTION):
            receipt += sender.send([record(one, wanted.bucket, wanted.listed_at or now) for one in portion])
    return ScanResult(counted(found), receipt, problem)


def counted(found: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How many there are of each name."""
    numbers = Counter(one["name"] for one in found)
    return {name: numbers[name] for name in (MANY, LARGE, BIG)}


def _of_objects(entries: DataFrame, limits: Limits) -> DataFrame:
    objects = entries.groupBy("key").agg(
        F.count(F.lit(1)).alias("versions"), F.sum(F.when(F.col("marker"), 0).otherwise(F.col("size"))).alias("size")
    )
    names = F.array_compact(
        F.array(
            F.when(F.col("versions") >= limits.versions, MANY),
            F.when(F.col("size") >= limits.size, LARGE),
        )
    )
    found = objects.select(F.explode(names).alias("name"), "key", "versions", "size")
    return found.withColumn("folders", F.lit(None).cast("bigint")).select(*EXCESSES.names)


def _of_folders(entries: DataFrame, limits: Limits) -> DataFrame:
    parts = F.split("key", "/")
    depth = F.size(parts) - 1
    folders = F.when(
        depth > 0, F.transform(F.sequence(F.lit(1), depth), lambda end: F.array_join(F.slice(parts, 1, end), "/"))
    )
    each = entries.select(F.explode(folders).alias("folder")).distinct()
    # What a folder lies in is the same without its last name: `a/` of `a/b/`, nothing of `a/`.
    outer = each.select(F.regexp_replace("folder", "[^/]*$", "").alias("key"))
    found = outer.groupBy("key").agg(F.count(F.lit(1)).alias("folders")).where(F.col("folders") > limits.folders)
    nothing = F.lit(None).cast("bigint")
    return found.select(F.lit(BIG).alias("name"), "key", nothing.alias("versions"), nothing.alias("size"), "folders")
