"""Compare a listing with a target's rows, and write the differences, so that no source has to be read again."""

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from app.resources.drift import DriftKind
from spark_jobs.folders import Folder
from spark_jobs.frames import by_key
from spark_jobs.jobs.comparison import Sizes, compare, namespace_by_key, parsed
from spark_jobs.listings.listing import Listing
from spark_jobs.reports.report import write_parquet


def write_differences(
    listing: Listing, rows: DataFrame, folder: Folder, *, has_single_rows: bool, bucket: str, **options: Any
) -> tuple[DataFrame, Mapping[str, int]]:
    """Write the DIFFERENCES between a listing and ROWS into a folder, by the `options` of `compare`.

    Returns a frame that reads them, and the numbers of `objects` and of `target_rows`. With `has_single_rows` the store
    probably returns each row once.

    To choose between several entries or rows of a key takes time, and hardly ever is there a choice. So both sides are
    compared as if each key were there once; if it was not, they are read again, and compared with a choice for each
    key.
    """
    options |= {"bucket": bucket, "versioned": listing.versioned}
    if listing.single is not None:
        single_rows = by_key(parsed(rows, bucket)) if has_single_rows else namespace_by_key(rows, bucket)
        sizes = Sizes()
        compared = compare(by_key(listing.single), single_rows, sizes=sizes, **options)
        differences = write_parquet(compared, folder / "differences.parquet")
        if not has_repeated_keys(differences, sizes):
            return _of_a_kind(differences), sizes.counts
    sizes = Sizes()
    compared = compare(listing.objects, namespace_by_key(rows, bucket), sizes=sizes, **options)
    return _of_a_kind(write_parquet(compared, folder / "chosen.parquet")), sizes.counts


def has_repeated_keys(differences: DataFrame, sizes: Sizes) -> bool:
    """Return whether a side of a comparison had a key more than once in a way that could change its DIFFERENCES."""
    if sizes.has_repeated_matches:
        return True
    # What remains are keys that one side alone has: without an object, or without a row. An object has a time.
    alone = differences.where(F.col("modified").isNull() | (F.col("kind") == DriftKind.MISSING))
    repeated = alone.groupBy(F.xxhash64("key")).count().where(F.col("count") > 1)
    return not repeated.isEmpty()


def _of_a_kind(differences: DataFrame) -> DataFrame:
    return differences.where(F.col("kind").isNotNull())
