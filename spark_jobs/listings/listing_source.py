"""Where a bucket's listing comes from: S3 itself, a file that one was written to, or a report of S3 Inventory."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from spark_jobs.listings import s3_listing
from spark_jobs.listings.inventory import Manifest
from spark_jobs.listings.listing import Listing, from_mc, from_parquet


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A bucket and how to list it. Times are milliseconds since 1970."""

    bucket: str
    listing: str = ""  # a file; empty: S3 is asked
    inventory: Manifest | None = None  # or this is read
    listed_at: int = 0  # when the listing that is not S3's own answer was begun
    versions: bool | None = None  # None: as the bucket's own setting says
    endpoint: str = ""

    def listed(self, spark: SparkSession, *, tasks: int, known: Sequence[str] = (), after: str = "") -> Listing:
        """The listing, only of the keys that come after `after`; `known` is a sample of the bucket's keys.

        Raises `BadListing`, and what Spark and S3 raise.
        """
        if self.is_written:
            found = self._written(spark)
            return replace(found, frame=found.frame.where(F.col("key") > after)) if after else found
        bucket = s3_listing.Bucket.found(self.bucket, self.endpoint)
        versioned = bucket.is_versioned() if self.versions is None else self.versions
        return s3_listing.listing(spark, bucket, versioned=versioned, known=known, tasks=tasks, after=after)

    @property
    def is_written(self) -> bool:
        """Whether it was listed before, at `listed_at`."""
        return bool(self.listing or self.inventory)

    def _written(self, spark: SparkSession) -> Listing:
        if self.inventory:
            return self.inventory.listing(spark, self.bucket, versions=self.versions, endpoint=self.endpoint)
        is_parquet = self.listing.endswith((".parquet", "/")) or Path(self.listing).is_dir()
        return (from_parquet if is_parquet else from_mc)(spark, self.listing, versioned=bool(self.versions))
