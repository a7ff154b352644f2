"""Google Cloud Storage, by Pub/Sub (wrapped or not), Eventarc and events of functions of the first generation.

Keys are raw. A generation is the version, and its number the microseconds at which it came to be; its metadata have a
number of their own. A bucket without versioning reports the generation that was overwritten as deleted, one with
versioning as archived, both with the generation that replaced it: such a message says nothing that the creation of the
new one does not. Without that generation, an archived one is what S3 calls a delete marker, but has no version of its
own. Eventarc never says what replaced a generation. The same event may come by several messages and configurations, so
what differs between these is not kept.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Any, NamedTuple

from app.events import minio_json
from app.events.errors import BadRecord, excerpt
from app.events.frontends.frontend import Frontend, Record, find, made_object, made_record, number, optional_text, text
from app.events.order import from_time, nanoseconds

SOURCE = "gcs:s3"
OF_GCS = f'"eventSource":"{SOURCE}"'  # in the JSON of its records
HEADERS = ("eventtype", "eventtime", "overwrittenbygeneration", "ce-type", "ce-time")  # where nothing is wrapped
_EVENTARC, _PUB_SUB, _FUNCTION = "google.cloud.storage.object.v1.", "OBJECT_", "google.storage.object."
_FINALIZED, _UPDATED, _ARCHIVED, _DELETED = "finalized", "metadataUpdated", "archived", "deleted"
_KINDS = {
    "FINALIZE": _FINALIZED,
    "METADATA_UPDATE": _UPDATED,
    "ARCHIVE": _ARCHIVED,
    "DELETE": _DELETED,
    "finalize": _FINALIZED,
    "metadataUpdate": _UPDATED,
    "archive": _ARCHIVED,
    "delete": _DELETED,
}
_NAMES = {
    _FINALIZED: "s3:ObjectCreated:Put",
    _UPDATED: "s3:ObjectCreated:Copy",
    _ARCHIVED: "s3:ObjectRemoved:DeleteMarkerCreated",
    _DELETED: "s3:ObjectRemoved:Delete",
}
_COMPOSITE = "s3:ObjectCreated:CompleteMultipartUpload"
OF_VERSIONS = (_NAMES[_FINALIZED], _NAMES[_UPDATED], _COMPOSITE, _NAMES[_DELETED])
_LAST = "F" * 16  # of a generation
_IN_BOTH = (("bucketId", "bucket"), ("objectId", "name"), ("objectGeneration", "generation"))


class Notification(NamedTuple):
    """The attributes of a message, and the object's resource, which is empty with `payloadFormat` `NONE`."""

    attributes: Mapping[str, Any]
    resource: Any


def is_event(attributes: object) -> bool:
    """Return whether the attributes of a message of Pub/Sub are those of an event of Cloud Storage."""
    return optional_text(attributes, "eventType").startswith(_PUB_SUB) and find(attributes, "bucketId") is not None


def is_cloud_event(value: Mapping[str, Any]) -> bool:
    """Return whether a CloudEvent in structured mode comes from Eventarc."""
    return optional_text(value, "type").startswith(_EVENTARC)


def of_function(value: Mapping[str, Any]) -> Notification | None:
    """Return the notification in what a function of the first generation gets; None for another object."""
    kind = optional_text(value, "context", "eventType")
    if not kind.startswith(_FUNCTION) or "data" not in value:
        return None
    return Notification({"eventType": kind, "eventTime": optional_text(value, "context", "timestamp")}, value["data"])


def is_resource(value: Mapping[str, Any]) -> bool:
    """Return whether the object is a resource, as a push without wrapper and Eventarc post it."""
    return value.get("kind") == "storage#object"


def unwrapped(value: Mapping[str, Any], headers: Mapping[str, str]) -> Notification:
    """Return the notification of a resource, whose attributes are headers of the request."""
    sent = {name.lower(): value for name, value in headers.items()}
    attributes = {
        "eventType": sent.get("eventtype") or sent.get("ce-type"),
        "eventTime": sent.get("eventtime") or sent.get("ce-time"),
        "overwrittenByGeneration": sent.get("overwrittenbygeneration"),
    }
    return Notification({name: header for name, header in attributes.items() if header}, value)


def records(sent: Notification) -> tuple[Record, ...]:
    """Return the event's record; none for a generation that was replaced. Raises `BadRecord`."""
    attributes, resource = sent
    if "eventType" not in attributes:
        wanted = "let the push subscription write metadata (--push-no-wrapper-write-metadata), or wrap its messages"
        raise BadRecord("eventType", f"is missing, without which an object's resource says nothing; {wanted}")
    for attribute, member in _IN_BOTH:
        label, value = find(attributes, attribute), find(resource, member)
        if label is not None and value is not None and str(label) != str(value):
            raise BadRecord(
                attribute, f"is {excerpt(label)}, and {member} of the object's resource is {excerpt(value)}"
            )
    said = text(attributes, "eventType")
    for prefix in (_EVENTARC, _PUB_SUB, _FUNCTION):
        said = said.removeprefix(prefix)
    kind = _KINDS.get(said, said)
    if kind in (_ARCHIVED, _DELETED) and optional_text(attributes, "overwrittenByGeneration"):
        return ()
    bucket = optional_text(attributes, "bucketId") or text(resource, "bucket")
    key = optional_text(attributes, "objectId") or text(resource, "name")
    generation = number(attributes, "objectGeneration") or number(resource, "generation")
    moment = optional_text(attributes, "eventTime") or optional_text(resource, "updated")
    thing = made_object(
        key,
        size=number(resource, "size"),
        eTag=_md5(resource) or optional_text(resource, "etag"),
        contentType=optional_text(resource, "contentType"),
        userMetadata=_metadata(resource),
        versionId=str(generation) if generation and kind != _ARCHIVED else "",
        sequencer=_order(kind, generation, number(resource, "metageneration") or 0, nanoseconds(moment)),
    )
    name = _NAMES.get(kind) or "s3:Object" + "".join(word.capitalize() for word in kind.split("_"))
    if kind == _FINALIZED and number(resource, "componentCount"):
        name = _COMPOSITE
    kept = {name: value for name, value in attributes.items() if name != "notificationConfig"}
    original = {"attributes": kept, "object": resource}
    return (made_record(SOURCE, name, bucket, thing, minio_json.milliseconds(moment), original),)


def _order(kind: str, generation: int | None, metageneration: int, time: int | None) -> str:
    """Return what orders the event: the end of a generation comes after all of it, and before the next."""
    if generation is None:
        return "" if time is None else from_time(time)
    if kind not in (_ARCHIVED, _DELETED):
        return from_time(generation * 1000, f"{metageneration:016X}")
    end = from_time(generation * 1000, _LAST)
    # A generation that was deleted may have been an old one, after which others came.
    return max(end, from_time(time)) if kind == _ARCHIVED and time is not None else end


def _md5(resource: Any) -> str:
    """Return the MD5, which S3 has as ETag, in hexadecimal; "" for a composite object."""
    try:
        return base64.b64decode(optional_text(resource, "md5Hash"), validate=True).hex()
    except binascii.Error:
        return ""


def _metadata(resource: Any) -> dict[str, str]:
    named = find(resource, "metadata")
    pairs = sorted(named.items()) if isinstance(named, dict) else ()
    return {f"X-Amz-Meta-{name}": value for name, value in pairs if isinstance(value, str)}


GCS = Frontend("gcs", records)
