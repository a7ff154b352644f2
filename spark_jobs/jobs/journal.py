"""Parse events into a journal of operations: what happened to which object, when and by whom; frames in, frames out.

The input is the events of the log, or the entries of a target of format `access`. An entry has no id; the digest of its
text serves as one, because the same text is the same event, which may have been delivered twice.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from spark_jobs.schemas import etag, integer, milliseconds, version

# Events of the log, as it stores them.
RECORDED = "id string, time bigint, name string, bucket string, key string, version string, record string"
# What a target received, and when it was received, for documents without a time.
ENTRIES = "time bigint, document string"
# Both, parsed; Parquet is partitioned by `day` (UTC) and `bucket`. Times are milliseconds since 1970.
JOURNAL = (
    "id string, time bigint, name string, key string, version string, size bigint, etag string, user string, "
    "address string, record string, day string, bucket string"
)
QUARANTINE = "id string, time bigint, document string"
OPERATIONS = "bucket string, hour string, user string, type string, operations bigint, bytes bigint"

# As PostgreSQL and MySQL receive it, as Redis does, and as Redis does with shape=guide.
_RECORDS = ("$.Records[0]", "$[0].Event[0]", "$[1][0]")
_COLUMNS = tuple(column.split()[0] for column in JOURNAL.split(", "))


def parse_log(recorded: DataFrame) -> DataFrame:
    """Return the JOURNAL of RECORDED."""
    return _journal(recorded)


def parse_entries(entries: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return the JOURNAL of ENTRIES, each event once, and the QUARANTINE: the entries that are not events."""
    text = F.coalesce("document", F.lit(""))
    record = F.coalesce(*(F.get_json_object("document", path) for path in _RECORDS))
    records = entries.select("time", "document", record.alias("record"))
    key = F.try_url_decode(_member("s3.object.key"))  # type: ignore[attr-defined, unused-ignore]  # younger than the stubs
    parsed = records.select(
        "*",
        _digest(text).alias("id"),
        _member("eventName").alias("name"),
        _member("s3.bucket.name").alias("bucket"),
        key.alias("key"),
        _member("s3.object.versionId").alias("version"),
        F.coalesce(milliseconds(_member("eventTime")), F.col("time")).alias("event_time"),
    )
    sound = F.col("event_time").isNotNull() & F.col("key").isNotNull()
    for name in ("name", "bucket"):
        sound &= F.coalesce(F.col(name) != "", F.lit(False))
    quarantine = parsed.where(~sound).select(
        _digest(F.concat_ws("|", F.coalesce(F.col("time").cast("string"), F.lit("")), text)).alias("id"),
        "time",
        "document",
    )
    events = parsed.where(sound).drop("time").withColumnRenamed("event_time", "time")
    return _journal(events).dropDuplicates(["id"]), quarantine.dropDuplicates(["id"])


def not_in(rows: DataFrame, known: DataFrame, *columns: str) -> DataFrame:
    """Return the rows whose `columns` no row of `known` has."""
    return rows.join(known.select(*columns), list(columns), "left_anti").select(*rows.columns)


def operations(journal: DataFrame) -> DataFrame:
    """Return the OPERATIONS: their number by bucket, hour (UTC), user and type, and the objects' bytes."""
    at = F.timestamp_millis("time")
    by = ("bucket", F.date_format(at, "yyyy-MM-dd'T'HH':00Z'").alias("hour"), "user", F.col("name").alias("type"))
    counted = F.count("*").alias("operations")
    size = F.coalesce(F.sum("size"), F.lit(0)).alias("bytes")
    return journal.groupBy(*by).agg(counted, size)


def sum_by(rows: DataFrame, *columns: str) -> DataFrame:
    """Return the sums of OPERATIONS, grouped by some of its columns."""
    sums = (F.sum(name).alias(name) for name in ("operations", "bytes"))
    return rows.groupBy(*columns).agg(*sums)


def _journal(events: DataFrame) -> DataFrame:
    parsed = events.select(
        "id", "time", "name", "bucket", "key", "record",
        version(F.col("version")).alias("version"),
        integer(_member("s3.object.size")).alias("size"),
        etag(_member("s3.object.eTag")).alias("etag"),
        F.coalesce(_member("userIdentity.principalId"), F.lit("")).alias("user"),
        F.coalesce(_member("source.host"), _member("requestParameters.sourceIPAddress"), F.lit("")).alias("address"),
        F.date_format(F.timestamp_millis("time"), "yyyy-MM-dd").alias("day"),
    )  # fmt: skip
    return parsed.select(*_COLUMNS)


def _member(path: str) -> Column:
    return F.get_json_object("record", f"$.{path}")


def _digest(text: Column) -> Column:
    return F.substring(F.sha2(text, 256), 1, 32)
