"""A journal of operations: what happened to which object, when and by whom; frames in, frames out.

It is made of the events of the log, or of the entries of a target of format `access`. An entry has no id of its own;
the digest of its text is one, as the same text is the same event, which a target may have been given twice.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from spark_jobs.schemas import etag, milliseconds, version, whole

# Events of the log, as it holds them.
RECORDED = "id string, time bigint, name string, bucket string, key string, version string, record string"
# What a target was given, and when it happened if its text does not say so.
ENTRIES = "time bigint, document string"
# Both, read; `day` (UTC) and `bucket` are what Parquet is divided by. Times are milliseconds since 1970.
JOURNAL = (
    "id string, time bigint, name string, key string, version string, size bigint, etag string, user string, "
    "address string, record string, day string, bucket string"
)
ASIDE = "id string, time bigint, document string"
OPERATIONS = "bucket string, hour string, user string, type string, operations bigint, bytes bigint"

# As PostgreSQL and MySQL are given it, as Redis is, and as Redis is with shape=guide.
_RECORDS = ("$.Records[0]", "$[0].Event[0]", "$[1][0]")
_COLUMNS = tuple(column.split()[0] for column in JOURNAL.split(", "))


def of_log(recorded: DataFrame) -> DataFrame:
    """JOURNAL of RECORDED."""
    return _journal(recorded)


def of_entries(entries: DataFrame) -> tuple[DataFrame, DataFrame]:
    """JOURNAL of ENTRIES, each event once, and ASIDE: the entries that are no events."""
    text = F.coalesce("document", F.lit(""))
    record = F.coalesce(*(F.get_json_object("document", path) for path in _RECORDS))
    found = entries.select("time", "document", record.alias("record"))
    key = F.try_url_decode(_member("s3.object.key"))  # type: ignore[attr-defined, unused-ignore]  # younger than the stubs
    read = found.select(
        "*",
        _digest(text).alias("id"),
        _member("eventName").alias("name"),
        _member("s3.bucket.name").alias("bucket"),
        key.alias("key"),
        _member("s3.object.versionId").alias("version"),
        F.coalesce(milliseconds(_member("eventTime")), F.col("time")).alias("told"),
    )
    sound = F.col("told").isNotNull() & F.col("key").isNotNull()
    for name in ("name", "bucket"):
        sound &= F.coalesce(F.col(name) != "", F.lit(False))
    aside = read.where(~sound).select(
        _digest(F.concat_ws("|", F.coalesce(F.col("time").cast("string"), F.lit("")), text)).alias("id"),
        "time",
        "document",
    )
    events = read.where(sound).drop("time").withColumnRenamed("told", "time")
    return _journal(events).dropDuplicates(["id"]), aside.dropDuplicates(["id"])


def unknown(found: DataFrame, known: DataFrame, *columns: str) -> DataFrame:
    """The rows of `found` whose `columns` no row of `known` has."""
    return found.join(known.select(*columns), list(columns), "left_anti").select(*found.columns)


def operations(journal: DataFrame) -> DataFrame:
    """OPERATIONS: how many of each type each user had done in a bucket in an hour (UTC), and the objects' bytes."""
    at = F.timestamp_millis("time")
    by = ("bucket", F.date_format(at, "yyyy-MM-dd'T'HH':00Z'").alias("hour"), "user", F.col("name").alias("type"))
    counted = F.count("*").alias("operations")
    size = F.coalesce(F.sum("size"), F.lit(0)).alias("bytes")
    return journal.groupBy(*by).agg(counted, size)


def by(found: DataFrame, *columns: str) -> DataFrame:
    """OPERATIONS, added up by some of its columns."""
    added = (F.sum(name).alias(name) for name in ("operations", "bytes"))
    return found.groupBy(*columns).agg(*added)


def _journal(events: DataFrame) -> DataFrame:
    read = events.select(
        "id", "time", "name", "bucket", "key", "record",
        version(F.col("version")).alias("version"),
        whole(_member("s3.object.size")).alias("size"),
        etag(_member("s3.object.eTag")).alias("etag"),
        F.coalesce(_member("userIdentity.principalId"), F.lit("")).alias("user"),
        F.coalesce(_member("source.host"), _member("requestParameters.sourceIPAddress"), F.lit("")).alias("address"),
        F.date_format(F.timestamp_millis("time"), "yyyy-MM-dd").alias("day"),
    )  # fmt: skip
    return read.select(*_COLUMNS)


def _member(path: str) -> Column:
    return F.get_json_object("record", f"$.{path}")


def _digest(text: Column) -> Column:
    return F.substring(F.sha2(text, 256), 1, 32)
