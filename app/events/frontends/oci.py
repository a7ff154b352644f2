"""Oracle Cloud Infrastructure Object Storage, by its service Events: a topic of Notifications, a stream, or a function.

Keys are raw. Nothing orders the events of a second, and the version that an event concerns is not sent reliably. An
ETag is not that of the S3 API, and there is no size.
"""

from collections.abc import Mapping
from typing import Any

from app.events.frontends.frontend import Frontend, Record, made_object, made_record
from app.events.frontends.json_path import find, optional_text, text
from app.events.order import from_time, nanoseconds

SOURCE = "oci:s3"
_KIND = "com.oraclecloud.objectstorage."
_NAMES = {
    "createobject": "s3:ObjectCreated:Put",
    "updateobject": "s3:ObjectCreated:Put",
    "deleteobject": "s3:ObjectRemoved:Delete",
}


def matches(value: Mapping[str, Any]) -> bool:
    """Return whether the object is an event of OCI's Object Storage."""
    return optional_text(value, "eventType").startswith(_KIND)


def records(event: Record) -> tuple[Record, ...]:
    """Return the event's record; none for an event of a bucket. Raises `BadRecord`."""
    kind = text(event, "eventType").removeprefix(_KIND)
    if kind.endswith("bucket"):
        return ()
    time = nanoseconds(find(event, "eventTime"))
    thing = made_object(
        text(event, "data", "resourceName"),
        eTag=optional_text(event, "data", "additionalDetails", "eTag"),
        sequencer="" if time is None else from_time(time),
    )
    name, bucket = _NAMES.get(kind, f"s3:{kind}"), text(event, "data", "additionalDetails", "bucketName")
    owner = optional_text(event, "data", "additionalDetails", "namespace")
    return (made_record(SOURCE, name, bucket, thing, None if time is None else time // 10**6, event, owner),)


OCI = Frontend("oci", records)
