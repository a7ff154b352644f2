"""Read a bucket's listing from a file: JSON lines of `mc ls`, JSON of other programs, Parquet, or CSV.

A listing that names another place than the whole bucket is refused: all that the bucket has would seem to be missing
from it. So is an empty one, which is what `mc` prints of an empty bucket, and what is left of a file that was lost.
Unreadable lines are counted and kept apart; a listing with unreadable lines is incomplete, so nothing may be removed
from a target because the listing lacks it.
"""

import atexit
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from app.events.buckets import name_at_store
from app.listings.limits import BadListing
from spark_jobs.folders import spark_url
from spark_jobs.frames import KEY_HASH, LISTING, by_key, etag, milliseconds, one_per_key, version
from spark_jobs.listings.json_documents import AWS, Place, convert

_MC = (
    "status string, type string, key string, size bigint, etag string, lastModified string, versionId string, "
    "versionOrdinal bigint, isDeleteMarker boolean, url string"
)
BROKEN_LINE = "broken_line"  # a column that no listing has
_EMPTY = "{} has no entries: if the bucket is empty, list it by S3, without --listing"
_INVENTORY_COLUMNS = ("key", "size", "e_tag", "last_modified_date", "version_id", "is_latest", "is_delete_marker")


@dataclass(frozen=True)
class Listing:
    """A bucket's objects; `unreadable` has the column `line` for each unreadable entry."""

    objects: DataFrame  # a LISTING, perhaps with the hash of each key
    versioned: bool
    unreadable: DataFrame
    problem: str = ""  # an error that the listing itself reports
    entries: DataFrame | None = None  # every version and delete marker: key, size, marker; None if not listed
    single: DataFrame | None = None  # the same objects if no key has two entries, which nobody has checked
    counted: int | None = None  # the unreadable entries, if they have been counted
    note: str = ""  # what else is to be said of it
    has_etags: bool = True  # without them nothing can be repaired, because an event has the ETag

    @property
    def frame(self) -> DataFrame:
        """The LISTING."""
        return self.objects.select(*LISTING.names)

    def where(self, condition: Column) -> "Listing":
        """Return the listing of the keys for which a condition holds; unreadable entries may be of any key."""
        kept = {name: frame.where(condition) for name in ("objects", "entries", "single")
                if (frame := getattr(self, name)) is not None}  # fmt: skip
        return replace(self, **kept)

    @property
    def unreadable_count(self) -> int:
        """The number of unreadable entries; reads the listing again unless they have been counted."""
        return self.unreadable.count() if self.counted is None else self.counted

    def describe_problem(self, unreadable: int) -> str:
        """Return why the listing may be incomplete, with the number of unreadable entries; "" for no reason."""
        lines = f"{unreadable} lines of the listing could not be read." if unreadable else ""
        return " ".join(filter(None, (self.problem, lines)))


def from_mc(spark: SparkSession, path: str, bucket: str, *, versioned: bool) -> Listing:
    """Read the output of `mc ls --json --recursive` of the bucket, with `--versions` if `versioned`.

    Raises `BadListing` for an empty one, and one of another bucket, of a prefix or without the objects in folders.
    Lines of an old mc do not name their place.
    """
    lines = spark.read.option("lineSep", "\n").text(spark_url(path)).where(F.trim("value") != "")
    entries = lines.select(F.col("value").alias("line"), F.from_json("value", _MC).alias("e")).select("line", "e.*")
    entries = entries.withColumn("modified", milliseconds(F.col("lastModified")))
    good = _is_true(F.col("status") == "success") & F.col("key").isNotNull() & F.col("modified").isNotNull()
    # A delete marker has no size and no ETag; an object without them is a truncated line.
    good &= _is_true(F.col("isDeleteMarker")) | (F.col("size").isNotNull() & F.col("etag").isNotNull())
    good &= _is_true(F.col("type").isin("file", "folder"))
    if versioned:
        good &= F.col("versionOrdinal").isNotNull()
    failed = F.min(F.when(F.col("status") == "error", F.col("line")))
    name, at_store = re.escape(bucket), re.escape(name_at_store(bucket))
    elsewhere = ~F.col("url").rlike(f"^[^/]*//([^/]*/({name}|{at_store})/?|{at_store}\\.[^/]*/?)$")
    is_folded = F.col("type").eqNullSafe("folder") & F.col("etag").eqNullSafe("") & F.col("isDeleteMarker").isNull()
    [checked] = entries.select(
        failed.alias("failed"),
        F.count_if(~good).alias("unreadable"),
        F.min(F.when(good & elsewhere, F.col("url"))).alias("elsewhere"),
        F.min(F.when(is_folded, F.col("key"))).alias("folder"),
        F.count(F.lit(1)).alias("lines"),
    ).collect()
    if checked["elsewhere"] is not None:
        raise BadListing(f"{path} is a listing of {checked['elsewhere'][:300]}, not of the whole bucket {bucket}")
    if checked["folder"] is not None:
        raise BadListing(
            f"{path} has the folder {checked['folder'][:300]!r} without its objects; use `mc ls --json --recursive`"
        )
    if not checked["lines"]:
        raise BadListing(_EMPTY.format(path))
    problem = "" if checked["failed"] is None else f"mc reported an error: {checked['failed'][:300]}"
    objects = entries.where(good).select(
        "key",
        etag(F.col("etag")).alias("etag"),
        "size",
        "modified",
        version(F.col("versionId")).alias("version"),
        F.coalesce("isDeleteMarker", F.lit(False)).alias("marker"),
        F.coalesce("versionOrdinal", F.lit(0)).alias("ordinal"),
    )
    single = None if versioned else objects.where("not marker").select(*LISTING.names)
    unreadable = entries.where(~good).select("line")
    return Listing(newest(objects), versioned, unreadable, problem, objects, single, checked["unreadable"])


def from_json_documents(spark: SparkSession, path: str, form: str, place: Place) -> Listing:
    """Read a listing of `aws` or `rclone`, which is converted in the temporary folder (TMPDIR) first.

    Raises `BadListing`.
    """
    folder = Path(tempfile.mkdtemp(prefix="bucketwire-listing-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    convert(path, form, place, folder / "entries.jsonl")
    columns = "key string, etag string, size bigint, lastModified string"
    entries = spark.read.schema(columns).json(spark_url(f"{folder}/entries.jsonl"))
    entries = entries.withColumn("modified", milliseconds(F.col("lastModified"))).withColumn("version", F.lit(""))
    good = F.col("modified").isNotNull()
    objects = entries.where(good).select(*LISTING.names)
    unreadable = entries.where(~good).select(F.to_json(F.struct("*")).alias("line"))
    # Of the order that aws promises it is checked that no key is there twice; rclone lists each path once.
    return Listing(by_key(objects), False, unreadable, single=objects, has_etags=form == AWS)


def csv(spark: SparkSession, urls: Sequence[str], names: Sequence[str], **options: str) -> DataFrame:
    """Return the columns of CSV as texts, and as `BROKEN_LINE` each line that is not whole; null for the others."""
    columns = ", ".join(f"`{name.replace('`', '``')}` string" for name in (*names, BROKEN_LINE))
    fixed = {
        "mode": "PERMISSIVE", "columnNameOfCorruptRecord": BROKEN_LINE, "escape": '"', "columnPruning": "false",
    }  # fmt: skip
    return spark.read.schema(columns).options(**fixed | options).csv(list(urls))


def from_csv(spark: SparkSession, path: str, bucket: str, *, versioned: bool) -> Listing:
    """Read CSV whose first line names the columns that `from_columns` needs; quotes in quotes are doubled.

    A line with fewer or more values, and one whose quotes do not end, is unreadable. Raises as `from_parquet` does.
    """
    options = {"escape": '"', "multiLine": "true", "header": "true"}
    names = spark.read.options(**options).csv(spark_url(path)).columns
    frame = csv(spark, [spark_url(path)], names, **options, enforceSchema="false")
    keys = {name: F.when(F.col(BROKEN_LINE).isNull(), F.col(name)) for name in names if name.lower() == "key"}
    return _from_table(frame.withColumns(keys), path, bucket, versioned=versioned)


def from_parquet(spark: SparkSession, path: str, bucket: str, *, versioned: bool) -> Listing:
    """Read Parquet with the columns that `from_columns` needs.

    Raises `BadListing` if one is missing, for no rows, and for a row whose column `bucket`, if there is one, names
    another.
    """
    return _from_table(spark.read.parquet(spark_url(path)), path, bucket, versioned=versioned)


def _from_table(frame: DataFrame, path: str, bucket: str, *, versioned: bool) -> Listing:
    listing = from_columns(frame, path, versioned=versioned)
    if names := [name for name in frame.columns if name.lower() == "bucket"]:
        column = F.col(names[0])
        own = column.eqNullSafe(bucket) | column.eqNullSafe(name_at_store(bucket))
        others = frame.where(~own).select(names[0]).head(1)
        if others:
            raise BadListing(f"{path} is a listing of {others[0][0]}, not of {bucket} only (column {names[0]})")
    if frame.isEmpty():
        raise BadListing(_EMPTY.format(path))
    return listing


def from_columns(frame: DataFrame, location: str, *, versioned: bool) -> Listing:
    """Return the listing of a frame with the columns of S3 Inventory, typed or all texts; `location` is for errors.

    The columns are key, size, e_tag and last_modified_date; for versions also version_id, is_latest and
    is_delete_marker. `etag` and `last_modified` are accepted too. Raises `BadListing` if a column is missing.
    """
    names = {name.lower(): name for name in frame.columns}
    synonyms = {"e_tag": "etag", "last_modified_date": "last_modified"}
    has = {name: names.get(name) or names.get(synonyms.get(name, "")) for name in _INVENTORY_COLUMNS}
    if missing := [name for name in _INVENTORY_COLUMNS[: 7 if versioned else 4] if not has[name]]:
        raise BadListing(f"{location} has no column {', '.join(missing)}; it has {', '.join(frame.columns)}")

    def of(name: str) -> Column:
        return F.col(has[name] or name)

    kind, time = dict(frame.dtypes)[has["last_modified_date"] or ""], of("last_modified_date")
    is_text, size = kind == "string", of("size").try_cast("bigint")
    modified = milliseconds(time) if is_text else F.unix_millis(time.cast("timestamp"))
    if kind == "bigint":  # in Parquet that does not say what its number is, as AWS's own table for Athena has it
        modified = time
    is_marker = of("is_delete_marker").try_cast("boolean") if has["is_delete_marker"] else F.lit(False)
    marker = F.coalesce(is_marker, F.lit(False))
    is_latest = of("is_latest").try_cast("boolean") if versioned else F.lit(True)
    # Conditions on the columns themselves where they say enough: Parquet's statistics then rule out unreadable entries
    # of whole files, which are not read for them.
    good = of("key").isNotNull() & (modified if is_text else time).isNotNull() & is_latest.isNotNull()
    good &= marker | (size.isNotNull() & of("e_tag").isNotNull())
    objects = frame.where(good).select(
        of("key").alias("key"),
        etag(of("e_tag")).alias("etag"),
        size.alias("size"),
        modified.alias("modified"),
        (version(of("version_id")) if versioned else F.lit("")).alias("version"),
        marker.alias("marker"),
        is_latest.cast("bigint").alias("ordinal"),
    )
    unreadable = frame.where(~good).select(F.to_json(F.struct("*")).alias("line"))
    latest = objects.where("ordinal = 1") if versioned else objects
    single = latest.where("not marker").select(*LISTING.names)
    return Listing(newest(latest), versioned, unreadable, entries=objects, single=single)


def newest(objects: DataFrame) -> DataFrame:
    """Return the LISTING of entries: the one with the greatest `ordinal` of each key, unless it is a `marker`.

    It has the hash of each key, too.
    """
    latest = one_per_key(objects, F.max_by(F.struct(*LISTING.names[1:], "marker"), "ordinal"))
    return latest.where("not chosen.marker").select(KEY_HASH, "key", "chosen.*").select(KEY_HASH, *LISTING.names)


def _is_true(condition: Column) -> Column:
    return F.coalesce(condition, F.lit(False))
