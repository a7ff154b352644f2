"""Read the live inventory table of S3 Metadata, which is an Iceberg table: one row for each version of each object."""

from dataclasses import dataclass
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from app.config.fields.aws import Catalog
from app.config.sources.bucket import BucketSourceSettings
from app.listings.limits import BadListing
from spark_jobs.listings.listing import Listing, from_columns

MARGIN = 3_600_000  # ms; S3 has the table follow the bucket within an hour
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


def opened(spark: SparkSession, catalog: Catalog, settings: BucketSourceSettings) -> MetadataTable:
    """Return the inventory table of a source's bucket. Raises `BadListing`, and what Spark raises."""
    prefix = f"spark.sql.catalog.{_CATALOG}"
    for name, value in _options(catalog, settings).items():
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


def _options(catalog: Catalog, settings: BucketSourceSettings) -> dict[str, str]:
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
