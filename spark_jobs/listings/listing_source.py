"""Select the source of a bucket's listing: S3 itself, a file with a listing, or an S3 Inventory report."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from spark_jobs.listings import s3_listing
from spark_jobs.listings.inventory import Manifest
from spark_jobs.listings.listing import Listing, from_mc, from_parquet


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingSource:
    """A bucket and how to list it. Times are milliseconds since 1970."""

    bucket: str
    listing: str = ""  # a file; empty: list S3
    inventory: Manifest | None = None  # read instead of S3
    listed_at: int = 0  # when the listing in the file or the inventory was started
    versions: bool | None = None  # None: if the bucket is versioned
    endpoint: str = ""

    def list_bucket(self, spark: SparkSession, *, tasks: int, sample: Sequence[str] = (), after: str = "") -> Listing:
        """Return the listing of the keys after `after`; `sample` has some of the bucket's keys, to divide the work.

        Raises `BadListing`, and what Spark and S3 raise.
        """
        if self.is_written:
            listing = self._read(spark)
            return replace(listing, objects=listing.objects.where(F.col("key") > after)) if after else listing
        bucket = s3_listing.Bucket.from_boto3(self.bucket, self.endpoint)
        versioned = bucket.is_versioned() if self.versions is None else self.versions
        return s3_listing.listing(spark, bucket, versioned=versioned, sample=sample, tasks=tasks, after=after)

    @property
    def is_written(self) -> bool:
        """Whether the listing was written before, at `listed_at`."""
        return bool(self.listing or self.inventory)

    def _read(self, spark: SparkSession) -> Listing:
        if self.inventory:
            return self.inventory.listing(spark, self.bucket, versions=self.versions, endpoint=self.endpoint)
        is_parquet = self.listing.endswith((".parquet", "/")) or Path(self.listing).is_dir()
        return (from_parquet if is_parquet else from_mc)(spark, self.listing, versioned=bool(self.versions))
