"""Make the data of `bench.reconcile`: a listing and a target's rows with a known number of differences."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUCKET = "bench"
DRIFT_INTERVAL = 1000  # one key in so many differs, for each kind
KINDS = ("missing", "stale", "orphaned", "malformed")
FIRST_MODIFIED = 1_790_000_000_000  # ms; the last object is a day younger
VERSION = "v3"
LISTING, ROWS, COPIED, SORTED = "listing.parquet", "rows.parquet", "rows.copy", "sorted-{}"
PARQUET, COPY, LINES = "parquet", "copy", "lines"  # formats
# `drift`: one key in 1,000 differs, for each kind; `empty`: the target has no rows; `different`: no row has its
# object's ETag; `twice`: one key in ten is twice on both sides, and the rows that do not count have another ETag;
# `versions`: every object has two older versions.
CASES = ("drift", "empty", "different", "twice", "versions")


def expected(case: str, count: int) -> Mapping[str, int]:
    """Return the number of differences of each kind in the data of a case."""
    each = count // DRIFT_INTERVAL
    if case == "empty":
        return dict.fromkeys(KINDS, 0) | {"missing": count - each}
    return dict.fromkeys(KINDS, each) | ({"stale": count - 3 * each} if case == "different" else {})


def make(spark: "SparkSession", case: str, count: int, folder: Path, formats: Sequence[str]) -> None:
    """Write the listing and the rows of `count` keys of 64 bytes, in these formats; keep what is there already."""
    for format_ in formats:
        if not (folder / _LAST_OF[format_] / "_SUCCESS").exists():
            _MAKERS[format_](spark, case, count, folder)


def _make_parquet(spark: "SparkSession", case: str, count: int, folder: Path) -> None:
    from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

    from spark_jobs.frames import ROWS as ROWS_SCHEMA

    number, kind = F.col("id"), F.col("id") % DRIFT_INTERVAL
    at = F.timestamp_millis(F.lit(FIRST_MODIFIED) + number % 86_400_000)
    key = F.format_string(
        "data/2026/%02d/%s/part-%012d.parquet",
        number % 12 + 1,
        F.substring(F.md5(number.cast("string")), 1, 24),
        number,
    )
    objects = spark.range(count).select(
        "id", kind.alias("kind"), key.alias("key"), F.md5(F.concat(F.lit("e"), number)).alias("etag"),
        (number * 37 % 1_000_000_000).alias("size"), at.alias("at"),
    )  # fmt: skip
    listing = objects.where("kind != 2").select(
        "key", "size", F.col("etag").alias("e_tag"), F.col("at").alias("last_modified_date")
    )
    twice = F.pmod(F.xxhash64("key"), F.lit(10)) == 0
    if case == "twice":
        listing = listing.union(listing.where(twice))
    if case == "versions":
        version = F.explode(F.array(*map(F.lit, ("v1", "v2", VERSION))))
        listing = listing.select("*", version.alias("version_id")).withColumns(
            {"is_latest": F.col("version_id") == VERSION, "is_delete_marker": F.lit(False)}
        )
    listing.write.parquet(str(folder / LISTING))

    def sound(column: Any) -> Any:
        return F.when(F.col("kind") != 3, column)

    time_ = F.date_format("at", "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")
    is_stale = F.lit(True) if case == "different" else F.col("kind") == 1
    existing = objects.where("false" if case == "empty" else "kind != 0").withColumn(
        "etag", F.when(is_stale, F.reverse("etag")).otherwise(F.col("etag"))
    )
    version_id = VERSION if case == "versions" else ""
    rows = existing.select(
        "key", sound(F.lit("s3:ObjectCreated:Put")).alias("name"), sound(F.lit(BUCKET)).alias("bucket"),
        sound(F.replace("key", F.lit("/"), F.lit("%2F"))).alias("object"), sound(F.col("etag")).alias("etag"),
        sound(F.col("size").cast("string")).alias("size"), sound(F.lit(version_id)).alias("version"),
        sound(F.upper(F.hex(F.col("id") + (1 << 60)))).alias("sequencer"), sound(time_).alias("time"),
    )  # fmt: skip
    rows = rows.select(*ROWS_SCHEMA.names)
    if case == "twice":
        earlier = {"sequencer": F.lit("1"), "etag": F.lit("0" * 32)}
        rows = rows.union(rows.where(twice & F.col("name").isNotNull()).withColumns(earlier))
    rows.write.parquet(str(folder / ROWS))


def _make_copy(spark: "SparkSession", case: str, count: int, folder: Path) -> None:  # noqa: ARG001 - as the others
    """Write the rows for a COPY, with their documents."""
    from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

    s3_object = F.struct(
        F.col("object").alias("key"), F.col("etag").alias("eTag"), F.col("size").cast("bigint").alias("size"),
        F.lit("application/octet-stream").alias("contentType"), F.nullif("version", F.lit("")).alias("versionId"),
        "sequencer",
    )  # fmt: skip
    record = F.struct(
        F.lit("2.0").alias("eventVersion"), F.lit("minio:s3").alias("eventSource"), F.col("time").alias("eventTime"),
        F.col("name").alias("eventName"),
        F.struct(F.struct(F.col("bucket").alias("name")).alias("bucket"), s3_object.alias("object")).alias("s3"),
    )  # fmt: skip
    document = F.to_json(F.struct(F.array(record).alias("Records")))
    document = F.when(F.col("name").isNull(), '{"Records":[]}').otherwise(document)
    copied = spark.read.parquet(str(folder / ROWS)).select(
        F.concat_ws("\t", F.concat(F.lit(f"{BUCKET}/"), "key"), document)
    )
    copied.write.text(str(folder / COPIED))


def _make_sorted(spark: "SparkSession", case: str, count: int, folder: Path) -> None:  # noqa: ARG001 - as the others
    """Write both sides in the order of their keys, a line for each entry."""
    from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

    for name, etag in ((LISTING, "e_tag"), (ROWS, "etag")):
        entries = spark.read.parquet(str(folder / name)).orderBy("key")
        lines = entries.select(
            F.concat_ws("\t", "key", F.coalesce(etag, F.lit("")), F.coalesce(F.col("size").cast("string"), F.lit("")))
        )
        lines.write.text(str(folder / SORTED.format(name)))


_MAKERS = {PARQUET: _make_parquet, COPY: _make_copy, LINES: _make_sorted}
_LAST_OF = {PARQUET: ROWS, COPY: COPIED, LINES: SORTED.format(ROWS)}  # of a format's folders


def parts(folder: Path) -> list[Path]:
    """Return the files that Spark wrote, in order."""
    return sorted(folder.glob("part-*"))
