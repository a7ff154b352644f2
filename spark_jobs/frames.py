"""The schemas of the jobs' frames, conversions of texts to their columns, and rows brought together by key.

What an event's name changes is told as `app.events.names` does.

Rows are partitioned and sorted by a hash of the key, then by the key, by one shuffle that aggregation and join share.
Keys of a bucket have long common prefixes, so a sort by the keys alone compares the same folders again and again; a
sort by hashes hardly ever compares two keys.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType

from app.events.names import KNOWN, MARKER, OPEN_FAMILIES, ContentChange, names_with


def _schema(**kinds: type[StringType | LongType | BooleanType]) -> StructType:
    return StructType([StructField(name, kind()) for name, kind in kinds.items()])


# The newest version of each object; keys whose newest version is a delete marker are left out.
LISTING = _schema(key=StringType, etag=StringType, size=LongType, modified=LongType, version=StringType)

# Every version of each object, and every delete marker.
ENTRIES = _schema(key=StringType, size=LongType, marker=BooleanType)

# A store's rows with the texts of their documents; `key` is the object's, without the bucket.
ROWS = _schema(
    key=StringType, name=StringType, bucket=StringType, object=StringType, etag=StringType, size=StringType,
    version=StringType, sequencer=StringType, time=StringType,
)  # fmt: skip

# The same, parsed; `sound` says whether the document is an event of the row's object.
NAMESPACE = _schema(
    key=StringType, sound=BooleanType, name=StringType, etag=StringType, size=LongType, version=StringType,
    sequencer=StringType, time=LongType,
)  # fmt: skip

# A difference: the object's properties, the row's, and the names of those that differ (for the kind `stale`).
DIFFERENCES = _schema(
    key=StringType, kind=StringType, differs=StringType, etag=StringType, size=LongType, modified=LongType,
    version=StringType, row_name=StringType, row_etag=StringType, row_size=LongType, row_version=StringType,
    row_sequencer=StringType, row_time=LongType,
)  # fmt: skip

# A difference, and whether an event that may explain it is in flight.
FINDINGS = StructType([*DIFFERENCES, StructField("in_flight", BooleanType())])

# A scan's warnings: an object's number of versions and their bytes, or a folder's number of folders.
WARNINGS = _schema(name=StringType, key=StringType, versions=LongType, size=LongType, folders=LongType)

# Paths of the texts of ROWS in an event's document, without its key.
PATHS = {
    "name": ("eventName",),
    "bucket": ("s3", "bucket", "name"),
    "object": ("s3", "object", "key"),
    "etag": ("s3", "object", "eTag"),
    "size": ("s3", "object", "size"),
    "version": ("s3", "object", "versionId"),
    "sequencer": ("s3", "object", "sequencer"),
    "time": ("eventTime",),
}


def milliseconds(text: Column) -> Column:
    """Parse a time in RFC 3339; null where it is none."""
    return F.unix_millis(F.try_to_timestamp(text))


def version(version_id: Column) -> Column:
    """Return "" for S3's null version, other ids unchanged."""
    return F.when(version_id.isNull() | version_id.isin("null", ""), "").otherwise(version_id)


def etag(quoted: Column) -> Column:
    """Remove the quotes that S3 puts around an ETag."""
    return F.trim(quoted, F.lit('"'))


def integer(text: Column) -> Column:
    """Parse an integer; null where the text is none."""
    return text.try_cast("bigint")


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


REMOVALS = (ContentChange.DELETE_MARKER, ContentChange.REMOVED, ContentChange.ALL_DELETED)
_CHANGES = [change for change in ContentChange if change is not ContentChange.NOTHING]


def change_of(name: Column) -> Column:
    """Return the value of the change that events of this name make; null for none."""
    known = F.when(F.lit(False), "")
    for change in _CHANGES:
        known = known.when(name.isin(names_with(change)), change.value)
    prefixes = {family[:-1]: change for family, change in OPEN_FAMILIES.items()}
    # Most names are known: the families are looked at for the others only.
    changed = known.when(name.isin(*prefixes, *sorted(KNOWN)), None)
    for prefix, effect in prefixes.items():
        is_member = name.startswith(prefix)
        if effect is ContentChange.REMOVED:
            changed = changed.when(is_member & name.contains(MARKER), ContentChange.DELETE_MARKER.value)
        changed = changed.when(is_member, effect.value)
    return changed


def has_change(name: Column, *changes: ContentChange) -> Column:
    """Return whether events of this name have one of these changes."""
    return is_change(change_of(name), *changes)


def is_change(change: Column, *changes: ContentChange) -> Column:
    """Return whether a change, as `change_of` returns it, is one of these."""
    return F.coalesce(change.isin([one.value for one in changes]), F.lit(False))
