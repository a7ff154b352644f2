"""Read the events of the service's own log by parallel tasks, and turn them into rows of the journal table.

A task has no more than one batch in memory. The columns that S3 Metadata's journal tables have are named and meant as
there; what no event says (storage class, encryption, checksum, tags) has no column. Below them are those of our own.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from app.events.frontends import order_of
from app.events.names import ContentChange
from app.outbox.engine.database import Database
from app.outbox.log.reading import ids_between, journal_rows
from spark_jobs.frames import REMOVALS, etag, has_change, integer

# As the log stores them, each with its comparable sequencer; times are milliseconds since 1970.
RECORDED = (
    "seq bigint, received_at bigint, id string, time bigint, name string, bucket string, key string, version string, "
    "sequencer string, record string"
)
_BATCH_SIZE = 5000  # events that a task has in memory at a time
_Rows = Callable[[Database, int, int, int], Sequence[tuple[Any, ...]]]


def recorded_between(
    spark: SparkSession, database: Database, partitions: int, after: int, last: int, *, connections: int = 8
) -> DataFrame:
    """Return RECORDED: the events that the log has after the position `after`, up to `last`.

    Its partitions have ranges of positions that do not overlap.
    """
    return _between(spark, database, partitions, (after, last), _recorded, RECORDED, connections)


def ids_recorded_between(
    spark: SparkSession, database: Database, partitions: int, after: int, last: int, *, connections: int = 8
) -> DataFrame:
    """Return the positions and ids of the same events, as the journal calls these columns."""
    return _between(
        spark, database, partitions, (after, last), ids_between, "log_position bigint, event_id string", connections
    )


def _between(
    spark: SparkSession,
    database: Database,
    partitions: int,
    window: tuple[int, int],
    rows: _Rows,
    schema: str,
    connections: int,
) -> DataFrame:
    after, last = window
    url = database.url.render_as_string(hide_password=False)
    windows = [(start, min(start + _BATCH_SIZE, last)) for start in range(after, last, _BATCH_SIZE)]
    cores = spark.sparkContext.defaultParallelism
    # Each task has a connection of its own, and as many tasks run at once as there are cores.
    slices = max(1, min(len(windows), 4 * cores if cores <= connections else connections))
    events = spark.sparkContext.parallelize(windows, slices).mapPartitions(
        lambda windows: _read(url, partitions, windows, rows)
    )
    return spark.createDataFrame(events, schema, verifySchema=False)


def _read(url: str, partitions: int, windows: Iterable[tuple[int, int]], rows: _Rows) -> Iterator[tuple[Any, ...]]:
    database = Database(url, pool_size=1, patience=None)
    try:
        for after, last in windows:
            yield from rows(database, partitions, after, last)
    finally:
        database.close()


def _recorded(database: Database, partitions: int, after: int, last: int) -> list[tuple[Any, ...]]:
    return [
        # The log keeps the sequencer only of events that supersede others.
        (*columns, sequencer or order_of(record), record)
        for *columns, sequencer, record in journal_rows(database, partitions, after, last)
    ]


# What is known of an object from the event that created it; the inventory has these columns too.
OBJECT = (
    ("size", "bigint"), ("last_modified_date", "timestamp"), ("e_tag", "string"), ("is_multipart", "boolean"),
    ("content_type", "string"), ("user_metadata", "map<string,string>"),
)  # fmt: skip
JOURNAL = (
    ("bucket", "string"), ("key", "string"), ("sequence_number", "string"), ("record_type", "string"),
    ("record_timestamp", "timestamp"), ("version_id", "string"), ("is_delete_marker", "boolean"), *OBJECT,
    ("requester", "string"), ("source_ip_address", "string"), ("request_id", "string"),
    ("event_name", "string"), ("event_source", "string"), ("event_id", "string"), ("log_position", "bigint"),
    ("recorded_at", "timestamp"),
)  # fmt: skip
# By our own clock: an event may claim any time, and each of its days would be a file of its own.
PARTITIONED_BY = "days(recorded_at)"
CREATE, UPDATE, DELETE, ACCESS, OTHER = "CREATE", "UPDATE_METADATA", "DELETE", "ACCESS", "OTHER"

_RECORD = (
    "eventSource string, userIdentity struct<principalId: string>, requestParameters struct<sourceIPAddress: string>, "
    "responseElements struct<`x-amz-request-id`: string>, source struct<host: string>, "
    "s3 struct<object: struct<size: string, eTag: string, contentType: string, "
    "userMetadata: map<string,string>>>"
)
_UPDATES = (
    "s3:ObjectCreated:", "s3:ObjectTagging:", "s3:ObjectAcl:", "s3:ObjectAnnotation:", "s3:ObjectRestore:",
    "s3:ObjectTransition:", "s3:ObjectLifecycle:Transition:", "s3:LifecycleTransition", "s3:IntelligentTiering",
)  # fmt: skip


def journal(recorded: DataFrame) -> DataFrame:
    """Return the JOURNAL of RECORDED, in the same order."""
    parsed = recorded.withColumn("r", F.from_json("record", _RECORD))
    s3_object = "r.s3.object"
    is_created = has_change(F.col("name"), ContentChange.CREATED)
    e_tag = _text(etag(F.col(f"{s3_object}.eTag")))
    rows = parsed.select(
        "bucket",
        "key",
        _text(F.col("sequencer")).alias("sequence_number"),
        record_type(F.col("name")).alias("record_type"),
        F.timestamp_millis("time").alias("record_timestamp"),
        _text(F.col("version")).alias("version_id"),
        _is_delete_marker().alias("is_delete_marker"),
        # A record without a size is that of an empty object, unless it is a removal's.
        F.when(is_created, F.coalesce(integer(F.col(f"{s3_object}.size")), F.lit(0))).alias("size"),
        F.when(is_created, F.timestamp_millis("time")).alias("last_modified_date"),
        e_tag.alias("e_tag"),
        F.when(is_created, F.col("name").endswith(":CompleteMultipartUpload") | _is(e_tag.contains("-"))).alias(
            "is_multipart"
        ),
        _text(
            F.coalesce(f"{s3_object}.contentType", F.try_element_at(f"{s3_object}.userMetadata", F.lit("content-type")))
        ).alias("content_type"),
        F.col(f"{s3_object}.userMetadata").alias("user_metadata"),
        _text(F.col("r.userIdentity.principalId")).alias("requester"),
        F.coalesce(_text(F.col("r.source.host")), _text(F.col("r.requestParameters.sourceIPAddress"))).alias(
            "source_ip_address"
        ),
        _text(F.col("r.responseElements.`x-amz-request-id`")).alias("request_id"),
        F.col("name").alias("event_name"),
        _text(F.col("r.eventSource")).alias("event_source"),
        F.col("id").alias("event_id"),
        F.col("seq").alias("log_position"),
        F.timestamp_millis("received_at").alias("recorded_at"),
    )
    return rows.select(*(name for name, _ in JOURNAL))


def record_type(name: Column) -> Column:
    """Return the kind of record that an event of this name is.

    S3 Metadata's three; `ACCESS` for reads, and `OTHER` for events that change no object or have a name of no family.
    """
    is_update = name.startswith(_UPDATES[0])
    for prefix in _UPDATES[1:]:
        is_update |= name.startswith(prefix)
    return (
        F.when(has_change(name, ContentChange.CREATED), CREATE)
        .when(has_change(name, *REMOVALS), DELETE)
        .when(is_update, UPDATE)
        .when(name.startswith("s3:ObjectAccessed:"), ACCESS)
        .otherwise(OTHER)
    )


def _is_delete_marker() -> Column:
    """Return true for a marker, false for what is no removal, and null for a removal that is none, as S3 Metadata."""
    name = F.col("name")
    is_marker = has_change(name, ContentChange.DELETE_MARKER) & (F.col("version") != "")
    return F.when(is_marker, F.lit(True)).when(~has_change(name, *REMOVALS), F.lit(False))


def _text(column: Column) -> Column:
    return F.when(column != "", column)


def _is(condition: Column) -> Column:
    return F.coalesce(condition, F.lit(False))
