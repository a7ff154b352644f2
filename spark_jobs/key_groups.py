"""Bring the rows of each key together by one shuffle that aggregation and join share.

Rows are partitioned and sorted by a hash of the key, then by the key. Keys of a bucket have long common prefixes, so a
sort by the keys alone compares the same folders again and again; a sort by hashes hardly ever compares two keys.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

KEY_HASH = "key_hash"


def by_key(frame: DataFrame) -> DataFrame:
    """Return the frame with the hash of each key, and all rows of a key in one partition.

    A frame that has the hash already stays as it is.
    """
    if KEY_HASH in frame.columns:
        return frame
    return frame.withColumn(KEY_HASH, F.xxhash64("key")).repartition(KEY_HASH, "key")


def one_per_key(frame: DataFrame, choice: Column) -> DataFrame:
    """Return `key_hash`, `key` and `chosen` for each key: `choice` is an aggregate over the rows of a key.

    A join of the result by hash and key needs neither a shuffle nor a sort of it.
    """
    # Partitioned before it is grouped, or Spark would sort and aggregate before the shuffle too, mostly single rows.
    return by_key(frame).groupBy(KEY_HASH, "key").agg(choice.alias("chosen"))
