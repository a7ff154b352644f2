"""What the jobs' frames hold, and how texts become their columns. Times are milliseconds since 1970."""

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType


def _schema(**kinds: type[StringType | LongType | BooleanType]) -> StructType:
    return StructType([StructField(name, kind()) for name, kind in kinds.items()])


# The newest version of each object, once; a key whose newest version is a delete marker is not in it.
LISTING = _schema(key=StringType, etag=StringType, size=LongType, modified=LongType, version=StringType)

# Every version of each object, and every delete marker.
ENTRIES = _schema(key=StringType, size=LongType, marker=BooleanType)

# A store's rows, each with the texts that its document holds; `key` is the object's, without the bucket.
ROWS = _schema(
    key=StringType, name=StringType, bucket=StringType, object=StringType, etag=StringType, size=StringType,
    version=StringType, sequencer=StringType, time=StringType,
)  # fmt: skip

# The same, read: `sound` is whether the document is an event of the object that the row is about.
NAMESPACE = _schema(
    key=StringType, sound=BooleanType, name=StringType, etag=StringType, size=LongType, version=StringType,
    sequencer=StringType, time=LongType,
)  # fmt: skip

# A difference: what the bucket holds, what the row says, and in which respects they differ (for the kind `stale`).
FINDINGS = _schema(
    key=StringType, kind=StringType, differs=StringType, etag=StringType, size=LongType, modified=LongType,
    version=StringType, row_name=StringType, row_etag=StringType, row_size=LongType, row_version=StringType,
    row_sequencer=StringType, row_time=LongType, in_flight=BooleanType,
)  # fmt: skip

# What a scan found: of an object how many versions it has and their bytes, of a folder how many folders are in it.
EXCESSES = _schema(name=StringType, key=StringType, versions=LongType, size=LongType, folders=LongType)

# Where in an event's document the texts of ROWS stand, without its key.
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
    """Of a time in RFC 3339; null where it is none."""
    return F.unix_millis(F.try_to_timestamp(text))


def version(found: Column) -> Column:
    """One name, "", for what S3 calls the null version."""
    return F.when(found.isNull() | found.isin("null", ""), "").otherwise(found)


def etag(found: Column) -> Column:
    """Without the quotes that S3 puts around it."""
    return F.trim(found, F.lit('"'))


def whole(text: Column) -> Column:
    """The number that a text holds; null where it holds none."""
    return text.try_cast("bigint")
