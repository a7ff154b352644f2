"""List the bucket of a source by many tasks into files: all versions and markers, and when the store answered.

The client is that of a worker, which uses nothing of its host (`app/listings/s3_client.py`).
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from app.config.sources.bucket import BucketSourceSettings
from app.listings import s3_client
from app.listings.limits import BadListing
from app.listings.pages import entries_of, skipped_of, time_of
from app.outbox.engine.clock import DatabaseClock
from app.outbox.engine.database import Database, DatabaseUnavailable
from app.outbox.sources.rows import SourceLease
from app.outbox.sources.watched import Skipped, WatchedBuckets
from spark_jobs.folders import Folder
from spark_jobs.listings import s3_listing
from spark_jobs.reports import write_parquet

# A row of an entry has its place in the listing of its range; one of a page has only the store's time (ms; 0: unknown),
# how many of its entries no event can have, and the key of the first of these.
SCHEMA = (
    "key string, place bigint, version string, etag string, size bigint, modified bigint, marker boolean, "
    "latest boolean, answered bigint, skipped bigint, skipped_key string"
)
_ATTEMPTS = 12  # of a request: a server that is busy is asked again for some minutes
_REQUESTS_AT_ONCE = 100  # that a task counts before it writes them
_MAX_LISTED = 100_000_000  # entries of a range: a server that never ends


@dataclass(slots=True)
class Requests:
    """Counts the requests of a source's listings in the outbox, also those of a task that fails. Thread-safe."""

    url: str = field(repr=False)  # of the outbox
    lease: SourceLease
    sent: int = 0  # since they were written
    _counting: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return Requests, (self.url, self.lease)  # each task counts its own

    def add(self) -> None:
        """Count one more; now and then what was counted is written."""
        with self._counting:
            self.sent += 1
            is_enough = self.sent >= _REQUESTS_AT_ONCE
        if is_enough:
            self.write()

    def write(self) -> None:
        """Write what was counted; if the outbox is away, another time."""
        with self._counting:
            sent, self.sent = self.sent, 0
        if not sent:
            return
        database = Database(self.url, pool_size=1, patience=None)
        try:
            WatchedBuckets(database, DatabaseClock(database), 0).count_requests(self.lease, sent)
        except DatabaseUnavailable:
            with self._counting:
                self.sent += sent
        finally:
            database.close()


@dataclass(frozen=True, slots=True)
class SourceBucket(s3_listing.Bucket):
    """The bucket of a source; it is sent to the executors."""

    access: BucketSourceSettings = field(kw_only=True, repr=False)
    requests: Requests = field(kw_only=True, repr=False)

    @classmethod
    def of(cls, settings: BucketSourceSettings, requests: Requests) -> "SourceBucket":
        """Return the bucket that a source's settings name."""
        return cls(settings.bucket, settings.endpoint, prefix=settings.prefix, access=settings, requests=requests)

    def client(self) -> Any:
        """Return a client; the caller closes it."""
        client = s3_client.of_source(self.access, attempts=_ATTEMPTS)
        s3_client.count_requests(client, self.requests.add)
        return client

    def end(self) -> None:
        """Write how many requests were sent."""
        self.requests.write()

    def is_versioned(self) -> bool:
        """Return whether versions are listed: as the settings say, or if versioning is or was enabled."""
        if self.access.versions != "auto":
            return self.access.versions == "on"
        client = self.client()
        try:
            return s3_client.has_versions(client, self.name)
        finally:
            client.close()


@dataclass(frozen=True, slots=True)
class SourceListing:
    """A listing that was read to its end, as SCHEMA; `store_time` is the store's own (ms) when it began, 0: unknown."""

    rows: DataFrame
    entries: int
    store_time: int
    skipped: Skipped


def write(
    spark: SparkSession, bucket: SourceBucket, ranges: Sequence[s3_listing.KeyRange], folder: Folder, *, versioned: bool
) -> SourceListing:
    """List the ranges, each by a task. Raises what a task raises, within an error of Spark's."""
    tasks = spark.sparkContext.parallelize(ranges, len(ranges))
    listed = tasks.flatMap(lambda keys: _rows(bucket, keys, versioned=versioned))
    return summed_up(write_parquet(spark.createDataFrame(listed, SCHEMA, verifySchema=False), folder))


def summed_up(rows: DataFrame) -> SourceListing:
    """Return the listing that rows are."""
    is_entry = F.col("key").isNotNull()
    [sums] = rows.select(
        F.count_if(is_entry).alias("entries"),
        F.min(F.when(F.col("answered") > 0, F.col("answered"))).alias("store_time"),
        F.coalesce(F.sum("skipped"), F.lit(0)).alias("skipped"),
        F.coalesce(F.min("skipped_key"), F.lit("")).alias("skipped_key"),
    ).collect()
    skipped = Skipped(sums["skipped"], sums["skipped_key"])
    return SourceListing(rows.where(is_entry), sums["entries"], sums["store_time"] or 0, skipped)


def _rows(bucket: SourceBucket, keys: s3_listing.KeyRange, *, versioned: bool) -> Iterator[tuple[Any, ...]]:
    try:
        yield from _listed_rows(bucket, keys, versioned=versioned)
    finally:
        bucket.end()


def _listed_rows(bucket: SourceBucket, keys: s3_listing.KeyRange, *, versioned: bool) -> Iterator[tuple[Any, ...]]:
    place = 0
    for page in s3_listing.pages_of(bucket, keys, versioned=versioned):
        skipped = [key for key in skipped_of(page, versioned=versioned) if s3_listing.is_within(key, keys)]
        first = min(skipped, default=None)
        yield (None, None, None, None, None, None, None, None, time_of(page), len(skipped), first)
        for one in entries_of(page, versioned=versioned):
            if s3_listing.is_within(one.key, keys):
                content = one.content
                yield (
                    one.key, place, one.version, content.etag, content.size, content.modified, content.is_marker,
                    one.is_latest, None, None, None,
                )  # fmt: skip
                place += 1
        if place > _MAX_LISTED:
            raise BadListing(f"a part of the listing has more than {_MAX_LISTED:,} entries")
