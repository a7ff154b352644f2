"""Read the bucket of a source from an inventory instead of listing it: a report of S3 Inventory, or S3 Metadata.

An inventory is of a time, and may lack what was written or removed in the `margin` before it. The client is that of a
listing by the source, which uses nothing of its host. The live inventory table of S3 Metadata is an Iceberg table with
one row for each version of each object.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from app.config.fields.aws import Catalog, catalog_of
from app.config.sources.bucket import BucketSourceSettings
from app.events.minio_json import timestamp
from app.events.names import NULL
from app.events.normalize import MAX_KEY_BYTES, MAX_VERSION
from app.listings import inventory
from app.listings.limits import BadListing
from app.listings.pages import MAX_ETAG
from spark_jobs.folders import Folder
from spark_jobs.listings.inventory import listing_of
from spark_jobs.listings.listing import Listing, from_columns
from spark_jobs.listings.source_listing import SCHEMA, SourceBucket, SourceListing, summed_up
from spark_jobs.reports import write_parquet

METADATA_MARGIN = 3_600_000  # ms; S3 has the table follow the bucket within an hour
_CATALOG = "inventory_of_source"
_ORDER = "sequence_number"  # of a key's versions: the greater, as text, is newer
_REWRITTEN = "replace"  # a commit that changes files, and no row


@dataclass(frozen=True, slots=True)
class MetadataTable:
    """The table as it was `committed` (ms): every row of it is of that state."""

    where: str
    bucket: str
    rows: DataFrame
    committed: int

    def listing(self, *, versioned: bool) -> Listing:
        """Return the bucket's listing. Raises `BadListing` if the table lacks a column, or is none of S3 Metadata."""
        has = {name.lower() for name in self.rows.columns}
        if "record_type" in has:
            raise BadListing(f"{self.where} is a journal of changes, not an inventory: name the bucket of an inventory")
        if "log_position" in has:
            raise BadListing(f"{self.where} was made of the event log itself, so that it shows nothing that this lacks")
        if missing := {"bucket", "key", "version_id", "is_delete_marker", _ORDER} - has:
            raise BadListing(
                f"{self.where} has no column {', '.join(sorted(missing))}; it has {', '.join(sorted(has))}"
            )
        key = F.when(F.col("bucket") == self.bucket, F.col("key"))  # a row of another bucket is unreadable
        rows = self.rows.withColumn("key", key)
        is_versioned = F.col("version_id").isNotNull() & ~F.col("version_id").isin("", "null")
        if versioned or not rows.where(is_versioned).isEmpty():
            order = Window.partitionBy("key").orderBy(F.col(_ORDER).desc_nulls_last())
            latest = (F.row_number().over(order) == 1) & F.col(_ORDER).isNotNull()
            return from_columns(rows.withColumn("is_latest", latest), self.where, versioned=True)
        return from_columns(rows, self.where, versioned=False)


def opened_table(spark: SparkSession, catalog: Catalog, settings: BucketSourceSettings) -> MetadataTable:
    """Return the inventory table of a source's bucket. Raises `BadListing`, and what Spark raises."""
    prefix = f"spark.sql.catalog.{_CATALOG}"
    for name, value in _catalog_options(catalog, settings).items():
        spark.conf.set(f"{prefix}.{name}", value)
    spark.conf.set(prefix, "org.apache.iceberg.spark.SparkCatalog")
    namespace = f"b_{settings.bucket.replace('.', '_')}"
    name, where = f"{_CATALOG}.`{namespace}`.inventory", f"the table {namespace}.inventory of {settings.inventory}"
    try:
        spark.table(name)  # makes this session the active one, whose catalogs Iceberg knows
        table = _java_table(spark, name)
        snapshot = _last_change(table)
    except AnalysisException as error:
        raise BadListing(f"{where} cannot be read: {error.getMessage() or error}") from None
    if snapshot is None:
        raise BadListing(f"{where} has no rows yet; wait until S3 says that it is ACTIVE")
    rows = spark.sql(f"SELECT * FROM {name} VERSION AS OF {int(snapshot.snapshotId())}")  # noqa: S608 - a number
    return MetadataTable(where, settings.bucket, rows, int(snapshot.timestampMillis()))


def _java_table(spark: SparkSession, name: str) -> Any:
    util = spark._jvm.org.apache.iceberg.spark.Spark3Util  # type: ignore[union-attr]  # of a session
    return util.loadIcebergTable(spark._jsparkSession, name)


def _last_change(table: Any) -> Any:
    """Return the newest snapshot whose commit changed rows, None for a table without any."""
    snapshot = table.currentSnapshot()
    while snapshot is not None and str(snapshot.operation()) == _REWRITTEN and snapshot.parentId() is not None:
        parent = table.snapshot(snapshot.parentId())
        if parent is None:  # expired
            break
        snapshot = parent
    return snapshot


def _catalog_options(catalog: Catalog, settings: BucketSourceSettings) -> dict[str, str]:
    options = {"type": "rest", "cache-enabled": "false", "uri": catalog.url}
    options |= {"warehouse": catalog.warehouse} if catalog.warehouse else {}
    if settings.access_key:
        login = {"access-key-id": settings.access_key, "secret-access-key": settings.secret_key}
        login |= {"session-token": settings.session_token} if settings.session_token else {}
        options |= {f"s3.{name}": value for name, value in login.items()}
        if catalog.signing_region:
            options |= {f"rest.{name}": value for name, value in login.items()}
            options |= {
                "rest.sigv4-enabled": "true", "rest.signing-name": "s3tables",
                "rest.signing-region": catalog.signing_region,
            }  # fmt: skip
    options["client.region"] = catalog.signing_region or settings.region or "us-east-1"
    if settings.endpoint and not catalog.signing_region:
        options |= {"s3.endpoint": settings.endpoint, "s3.path-style-access": "true"}
    return options


_LAST_TIME = 253_402_300_799_999  # ms; the end of the year 9999, after which no event can have a time


@dataclass(frozen=True, slots=True)
class SourceInventory:
    """An inventory of a source's bucket. It was begun and complete at times of its store (ms).

    The store's clock showed `answered` when it was opened; 0 if nobody knows. It has to be newer than the one that is
    known, unless it `may_repeat`.
    """

    where: str
    begun: int
    written: int
    margin: int
    may_repeat: bool
    read: Callable[[bool], Listing]  # of all versions, or of the current objects
    answered: int = 0

    @property
    def time(self) -> int:
        """From when on it may lack changes."""
        return self.begun - self.margin

    def check_age(self, known: int, now: int, kept_since: int) -> None:
        """Raise `BadListing` for one that is not newer than what is known (ms of its store, 0 for nothing).

        So for one of a time after `now`, or before `kept_since`, from when on the log has every event.
        """
        of = f"{self.where} is of {timestamp(self.begun)}"
        # Of a store whose clock is ahead it may be older than it says. The margin is for more than that.
        if (ahead := max(self.begun, self.answered) - now) > self.margin // 12:
            wrong = "is yet to come" if self.begun >= self.answered else "may not be true"
            raise BadListing(
                f"{of}, which {wrong}: the clock of its store is ahead of the database's by {ahead // 60_000:,} min; "
                "set the wrong one right"
            )
        if known and (self.time < known or (self.time == known and not self.may_repeat)):
            raise BadListing(
                f"{of}, and not newer than what is known, of {timestamp(known)}: it may lack what changed up to "
                f"{self.margin // 3_600_000} h before its time; wait for the next one, or see to why there is none"
            )
        if self.time < kept_since:
            raise BadListing(
                f"{of}, which is too old: events since {timestamp(self.time)} may have left the log, which has those "
                f"since {timestamp(kept_since)}; wait for a newer one, and if none is, raise BUCKETWIRE_RETENTION"
            )

    def write(self, folder: Folder, prefix: str, *, versioned: bool) -> SourceListing:
        """Write its entries below a prefix to files. Raises `BadListing` also for entries that cannot be read."""
        listing = self.read(versioned)
        if unreadable := listing.unreadable_count:
            [first] = listing.unreadable.limit(1).collect()
            raise BadListing(
                f"{self.where}: {unreadable:,} of its lines cannot be read, such as "
                f"{first['line']!r:.300}; nothing is compared with an inventory that may lack objects"
            )
        written = summed_up(write_parquet(_rows(listing, prefix, versioned=versioned), folder))
        return replace(written, store_time=self.time)


def opened(spark: SparkSession, bucket: SourceBucket) -> SourceInventory:
    """Return the inventory that a source's settings name. Raises `BadListing`, and what S3 and Spark raise."""
    settings = bucket.access
    if catalog := catalog_of(settings.inventory):
        table = opened_table(spark, catalog, settings)
        return SourceInventory(
            table.where, table.committed, table.committed, METADATA_MARGIN, may_repeat=True,
            read=lambda versioned: table.listing(versioned=versioned),
        )  # fmt: skip

    def storage(name: str) -> SourceBucket:
        return replace(bucket, name=name)

    report = inventory.manifest(settings.inventory, lambda name: storage(name).client())
    return SourceInventory(
        report.location, report.begun, report.written, inventory.MARGIN, may_repeat=False,
        read=lambda versioned: listing_of(spark, report, settings.bucket, storage, versions=versioned),
        answered=report.answered,
    )  # fmt: skip


def _rows(listing: Listing, prefix: str, *, versioned: bool) -> DataFrame:
    """Return the entries as SCHEMA, and a row for each that no event can have."""
    entries = listing.entries if versioned else listing.single
    if entries is None:
        raise RuntimeError("an inventory without entries")  # of our own code
    version = F.when(F.col("version") == "", NULL).otherwise(F.col("version")) if versioned else F.lit("")
    columns = {
        "key": F.col("key"),
        "place": -F.col("modified"),  # the newest first, as a listing has them
        "version": version,
        "etag": F.coalesce("etag", F.lit("")),
        "size": F.coalesce("size", F.lit(0)),
        "modified": F.col("modified"),
        "marker": F.col("marker") if versioned else F.lit(False),
        "latest": (F.col("ordinal") == 1) if versioned else F.lit(True),
    }
    if versioned:
        columns["etag"], columns["size"] = (
            F.when(F.col("marker"), nothing).otherwise(columns[name])
            for name, nothing in (("etag", F.lit("")), ("size", F.lit(0)))
        )
    named = entries.where(F.col("key").startswith(prefix)).select(*(one.alias(name) for name, one in columns.items()))
    no_nul = ~F.col("key").contains("\0") & ~F.col("version").contains("\0")
    is_recordable = (F.col("key") != "") & (F.octet_length("key") <= MAX_KEY_BYTES) & no_nul
    is_recordable &= (F.length("version") <= MAX_VERSION) & (F.length("etag") <= MAX_ETAG) & (F.col("size") >= 0)
    is_recordable &= F.col("modified").between(0, _LAST_TIME)
    kinds = dict(column.strip().split(" ") for column in SCHEMA.split(","))
    of_pages = {"answered": F.lit(None), "skipped": F.lit(None), "skipped_key": F.lit(None)}
    of_skipped = {"answered": F.lit(0), "skipped": F.lit(1), "skipped_key": F.col("key")}

    def row(values: dict[str, Column]) -> list[Column]:
        return [values[name].cast(kind).alias(name) for name, kind in kinds.items()]

    there = {name: F.col(name) for name in columns}
    entries = named.where(is_recordable).select(*row(there | of_pages))
    skipped = named.where(~is_recordable).select(*row(dict.fromkeys(there, F.lit(None)) | of_skipped))
    return entries.union(skipped)
