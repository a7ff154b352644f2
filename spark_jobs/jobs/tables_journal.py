"""Turn recorded events into rows of the journal table; frames in, frames out.

The columns that S3 Metadata's journal tables have are named and meant as there; what no event says (storage class,
encryption, checksum, tags) has no column. Below them are those of our own.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from app.events.names import ContentChange
from spark_jobs.frames import REMOVALS, etag, has_change, integer

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
