"""List single keys of a bucket: one request for each, whose answer has what a listing of the bucket has of it."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from botocore.exceptions import ClientError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from app.listings.pages import MAX_KEY_BYTES, PAGE_KEYS, is_path, pages
from spark_jobs.api_client import batches
from spark_jobs.frames import LISTING
from spark_jobs.listings.listing import Listing
from spark_jobs.listings.s3_listing import Bucket, Row, is_object, row_of

_REQUESTS = 8  # of one task at once; a client has 10 connections
_BATCH = 1000  # keys that a task has in memory


def listing(spark: SparkSession, bucket: Bucket, keys: DataFrame, *, versioned: bool, tasks: int) -> Listing:
    """Return what a bucket's listing has of keys (the column `key`), asked by `tasks` at once."""
    divided = keys.select("key").distinct().repartition(tasks).rdd
    found = divided.mapPartitions(lambda rows: objects(bucket, (row.key for row in rows), versioned=versioned))
    frame = spark.createDataFrame(found, LISTING, verifySchema=False)
    return Listing(frame, versioned, spark.range(0).select(F.lit("").alias("line")), single=frame)


def objects(bucket: Bucket, keys: Iterable[str], *, versioned: bool) -> Iterator[Row]:
    """Yield the objects of keys, each in its newest version. Raises `BadListing`, and what boto3 raises."""
    client = bucket.client()
    try:
        with ThreadPoolExecutor(_REQUESTS) as threads:
            for some in batches(keys, _BATCH):
                found = threads.map(lambda key: newest_entry(client, bucket.name, key, versioned=versioned), some)
                yield from (row_of(entry) for entry in found if entry is not None)
    finally:
        client.close()


def existing(bucket: Bucket, keys: Sequence[str], *, versioned: bool) -> frozenset[str]:
    """Return those of a few keys that have an object, none if the bucket is gone. Raises as `objects` does."""
    if not keys or bucket.is_gone():
        return frozenset()
    return frozenset(row[0] for row in objects(bucket, keys, versioned=versioned))


def newest_entry(client: Any, bucket: str, key: str, *, versioned: bool) -> Any:
    """Return S3's entry of a key's newest version; None if there is none, or it is a delete marker.

    Raises `BadListing`, and what boto3 raises.
    """
    if not _is_possible(key):
        return None
    try:
        # The key itself comes before all others that begin with it.
        for page in pages(client, bucket, versioned=versioned, prefix=key, size=1):
            entries = [entry for kind in PAGE_KEYS for entry in page.get(kind, ())]
            newest = next((one for one in entries if one["Key"] == key and one.get("IsLatest", True)), None)
            if newest is not None:
                return newest if is_object(newest) else None
            if any(entry["Key"] != key for entry in entries):
                return None
    except ClientError as error:
        # A server that stores objects in folders has none of that name, and refuses to look for it.
        if is_path(key) or error.response["ResponseMetadata"]["HTTPStatusCode"] != 400:
            raise
    return None


def _is_possible(key: str) -> bool:
    """Return whether an object can have a key, which anybody may have posted."""
    try:
        return 0 < len(key.encode()) <= MAX_KEY_BYTES and "\0" not in key
    except UnicodeEncodeError:
        return False
