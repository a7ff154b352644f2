"""Select the source of a bucket's listing: S3 itself, a file with a listing, or an S3 Inventory report."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from app.config.bucket_settings import BucketSettings
from app.events.buckets import name_at_store
from app.listings.inventory import Manifest
from app.listings.limits import BadListing
from app.outbox.engine.database import now_ms
from app.quantities import format_seconds
from spark_jobs.jobs.repair_events import format_time
from spark_jobs.listings import inventory, named_keys, s3_listing
from spark_jobs.listings.listing import Listing, Place, form_of, from_csv, from_json_documents, from_mc, from_parquet
from spark_jobs.scratch import ListingParts

_TASKS_PER_CORE = 2  # key ranges, because they are not equally long
_KEYS_PER_TASK, _MAX_TASKS = 1_000_000, 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingSource:
    """A bucket and how to list it. Times are milliseconds since 1970."""

    bucket: str
    listing: str = ""  # a file; empty: list S3
    listing_of: str = ""  # of what somebody says that the file is, as BUCKET or BUCKET/PREFIX
    inventory: Manifest | None = None  # read instead of S3
    listed_at: int = 0  # when the listing in the file or the inventory was started
    log_retention: int = 7 * 86_400_000  # ms for which the log keeps delivered events
    grace: int = 60_000  # objects younger than this (ms) are in flight: their events may not have arrived yet
    versions: bool | None = None  # None: if the bucket is versioned
    endpoint: str = ""
    prefix: str = ""  # only the keys that begin with it
    access: BucketSettings = field(default_factory=BucketSettings)  # the bucket's own: where it is, and how to log in
    may_be_gone: bool = False  # whether a bucket that is not there counts as empty
    size: int = 0  # about how many entries the listing and the target have together; 0 if that is not known

    def tasks(self, spark: SparkSession) -> int:
        """Return by how many tasks to list: by the cluster's cores, and by the bucket's size where cores come later."""
        by_size = min(self.size // _KEYS_PER_TASK, _MAX_TASKS)
        return max(_TASKS_PER_CORE * spark.sparkContext.defaultParallelism, by_size)

    def list_bucket(
        self, spark: SparkSession, *, tasks: int, sample: Sequence[str] = (), after: str = "",
        needs_etags: bool = False, keys: DataFrame | None = None, parts: ListingParts | None = None,
    ) -> Listing:  # fmt: skip
        """Return the listing of the keys after `after`; `sample` has some of the bucket's keys, to divide the work.

        With `keys` (the column `key`) S3 is asked for each of these, and for no others. With `parts` S3's listing is
        written there part by part, now, and only the parts that are not there yet.

        Raises `BadListing`, also with `needs_etags` for one without them, and what Spark and S3 raise.
        """
        if self.is_written:
            listing = self._read(spark)
            if needs_etags and not listing.has_etags:
                raise BadListing(f"{self.listing} has no ETags, which the events for a target have: list by mc or aws")
            if self.prefix:
                listing = listing.where(F.col("key").startswith(self.prefix))
            return listing.where(F.col("key") > after) if after else listing
        bucket = self.storage
        if bucket.is_gone():
            # Only Ceph knows a name with a tenant: of any other storage the answer is no evidence.
            is_asked_wrongly = not self.access.bucket and name_at_store(bucket.name) != bucket.name
            if is_asked_wrongly or not self.may_be_gone:
                hint = "; `bucketwire bucket set` says where it is, and its name there" if is_asked_wrongly else ""
                raise BadListing(f"there is no bucket {bucket.name} at {bucket.endpoint or 'AWS'}{hint}")
            return s3_listing.of_no_bucket(spark, bucket)
        versioned = bucket.is_versioned() if self.versions is None else self.versions
        if keys is not None:
            return named_keys.listing(spark, bucket, keys, versioned=versioned, tasks=tasks)
        if parts is not None:
            return parts.listing(spark, bucket, sample=sample, tasks=tasks, versioned=versioned)
        ranges = s3_listing.divided(bucket, sample=sample, tasks=tasks, after=after)
        return s3_listing.listing(spark, bucket, ranges, versioned=versioned)

    def existing(self, keys: Sequence[str], *, versioned: bool) -> frozenset[str]:
        """Return those of a few keys that the storage has, asked for each now; none if the listing was written before.

        Raises as `list_bucket` does.
        """
        if self.is_written:
            return frozenset()
        return named_keys.existing(self.storage, keys, versioned=versioned)

    def problem_of_age(self, listed_at: int) -> str:
        """Return why nothing may go by a listing of that time: events since then may have left the log; "" if it may.

        Then nothing shows which objects have changed since, and the listing's state of them would replace a later one.
        """
        if listed_at - self.grace >= now_ms() - self.log_retention:
            return ""
        return (
            f"The listing of {format_time(listed_at)} is too old: events since then may have left the log, which keeps "
            f"them for {format_seconds(self.log_retention / 1000)}. Make a new listing, or raise BUCKETWIRE_RETENTION."
        )

    def check_age(self) -> None:
        """Raise `BadListing` for a written listing that is too old."""
        if self.is_written and (problem := self.problem_of_age(self.listed_at)):
            raise BadListing(problem)

    @property
    def name_in_storage(self) -> str:
        """The bucket's name in its storage, which listings have."""
        return self.access.name_in_storage(self.bucket)

    @property
    def storage(self) -> s3_listing.Bucket:
        """The bucket in its storage, with the credentials that this machine and the bucket's settings have now."""
        bucket = s3_listing.Bucket.from_boto3(self.name_in_storage, self.endpoint, self.access)
        return replace(bucket, prefix=self.prefix)

    @property
    def is_written(self) -> bool:
        """Whether the listing was written before, at `listed_at`."""
        return bool(self.listing or self.inventory)

    def _read(self, spark: SparkSession) -> Listing:
        if self.inventory:
            storage = partial(s3_listing.Bucket.from_boto3, endpoint=self.endpoint, settings=self.access)
            return inventory.listing_of(spark, self.inventory, self.name_in_storage, storage, versions=self.versions)
        name = self.listing.rstrip("/").rpartition("/")[2]
        if name.startswith(("_", ".")):
            raise BadListing(f"{self.listing}: Spark does not read what begins with _ or a dot; give it another name")
        is_csv = self.listing.endswith((".csv", ".csv.gz"))
        is_parquet = self.listing.endswith((".parquet", "/")) or (Path(self.listing).is_dir() and not is_csv)
        names = frozenset((self.name_in_storage, self.bucket, name_at_store(self.bucket)))
        place = Place(names, self.prefix, self.listing_of)
        if not is_csv and not is_parquet and (form := form_of(self.listing)):
            if self.versions:
                raise BadListing(f"{self.listing} lists current versions only; leave out --versions")
            return from_json_documents(spark, self.listing, form, place)
        place.check_statement(self.listing)
        read = from_csv if is_csv else from_parquet if is_parquet else from_mc
        return read(spark, self.listing, self.name_in_storage, versioned=bool(self.versions))
