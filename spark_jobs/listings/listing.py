"""What a bucket holds, read from a file that a listing was written to: JSON lines of `mc ls`, or Parquet.

Lines that cannot be read are counted and set aside; with any of them the listing is not `complete`, and then nothing
may be taken away anywhere for what it does not name.
"""

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from spark_jobs.schemas import LISTING, etag, milliseconds, version

_MC = (
    "status string, type string, key string, size bigint, etag string, lastModified string, versionId string, "
    "versionOrdinal bigint, isDeleteMarker boolean"
)
_INVENTORY = ("key", "size", "e_tag", "last_modified_date", "version_id", "is_latest", "is_delete_marker")


class BadListing(Exception):
    """The file is no listing; the message says what it lacks."""


@dataclass(frozen=True)
class Listing:
    """A LISTING; `bad` has the column `line` for each entry that could not be read."""

    frame: DataFrame
    versioned: bool
    bad: DataFrame
    problem: str = ""  # what it says of itself that went wrong
    entries: DataFrame | None = None  # every version and marker: key, size, marker; None where nobody asked for them

    @property
    def bad_count(self) -> int:
        """How many entries were set aside; reads them once more."""
        return self.bad.count()


def from_mc(spark: SparkSession, path: str, *, versioned: bool) -> Listing:
    """Of `mc ls --json --recursive`, with `--versions` if `versioned`."""
    lines = spark.read.option("lineSep", "\n").text(path).where(F.trim("value") != "")
    found = lines.select(F.col("value").alias("line"), F.from_json("value", _MC).alias("e")).select("line", "e.*")
    found = found.withColumn("modified", milliseconds(F.col("lastModified")))
    good = _true(F.col("status") == "success") & F.col("key").isNotNull() & F.col("modified").isNotNull()
    # A marker has no size and no ETag; an object without them is half a line.
    good &= _true(F.col("isDeleteMarker")) | (F.col("size").isNotNull() & F.col("etag").isNotNull())
    good &= _true(F.col("type").isin("file", "folder"))
    if versioned:
        good &= F.col("versionOrdinal").isNotNull()
    failed = found.where(F.col("status") == "error").select("line").head()
    problem = "" if failed is None else f"mc says that it failed: {failed['line'][:300]}"
    objects = found.where(good).select(
        "key",
        etag(F.col("etag")).alias("etag"),
        "size",
        "modified",
        version(F.col("versionId")).alias("version"),
        F.coalesce("isDeleteMarker", F.lit(False)).alias("marker"),
        F.coalesce("versionOrdinal", F.lit(0)).alias("ordinal"),
    )
    return Listing(newest(objects), versioned, found.where(~good).select("line"), problem, objects)


def from_parquet(spark: SparkSession, path: str, *, versioned: bool) -> Listing:
    """Of Parquet with the columns that `from_columns` wants. Raises `BadListing` where one is missing."""
    return from_columns(spark.read.parquet(path), path, versioned=versioned)


def from_columns(found: DataFrame, place: str, *, versioned: bool) -> Listing:
    """Of a frame with the columns of S3 Inventory, of their own types or all texts; found at `place`.

    Those are key, size, e_tag and last_modified_date; of versions also version_id, is_latest and is_delete_marker.
    `etag` and `last_modified` will do. Raises `BadListing` where a column is missing.
    """
    names = {name.lower(): name for name in found.columns}
    also = {"e_tag": "etag", "last_modified_date": "last_modified"}
    has = {name: names.get(name) or names.get(also.get(name, "")) for name in _INVENTORY}
    if missing := [name for name in _INVENTORY[: 7 if versioned else 4] if not has[name]]:
        raise BadListing(f"{place} has no column {', '.join(missing)}; it has {', '.join(found.columns)}")

    def of(name: str) -> Column:
        return F.col(has[name] or name)

    is_text = dict(found.dtypes)[has["last_modified_date"] or ""] == "string"
    written = of("last_modified_date")
    marker = of("is_delete_marker").try_cast("boolean") if has["is_delete_marker"] else F.lit(False)
    objects = found.select(
        of("key").alias("key"),
        etag(of("e_tag")).alias("etag"),
        of("size").try_cast("bigint").alias("size"),
        (milliseconds(written) if is_text else F.unix_millis(written.cast("timestamp"))).alias("modified"),
        (version(of("version_id")) if versioned else F.lit("")).alias("version"),
        F.coalesce(marker, F.lit(False)).alias("marker"),
        (of("is_latest").try_cast("boolean") if versioned else F.lit(True)).cast("bigint").alias("ordinal"),
        F.to_json(F.struct("*")).alias("line"),
    )
    good = F.col("key").isNotNull() & F.col("modified").isNotNull() & F.col("ordinal").isNotNull()
    good &= F.col("marker") | (F.col("size").isNotNull() & F.col("etag").isNotNull())
    bad, objects = objects.where(~good).select("line"), objects.where(good).drop("line")
    return Listing(newest(objects.where("ordinal = 1") if versioned else objects), versioned, bad, entries=objects)


def newest(objects: DataFrame) -> DataFrame:
    """LISTING of entries with `ordinal` and `marker`: of each key the one with the greatest ordinal, no marker."""
    whole = F.struct(*LISTING.names, "marker")
    one = objects.groupBy(F.col("key").alias("k")).agg(F.max_by(whole, "ordinal").alias("o"))
    return one.where("not o.marker").select("o.*").select(*LISTING.names)


def _true(condition: Column) -> Column:
    return F.coalesce(condition, F.lit(False))
