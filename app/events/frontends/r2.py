"""Cloudflare R2, by the messages that it puts into a queue of Cloudflare.

Keys are raw, and a bucket has no versions. An event's order is its time, in milliseconds.
"""

from collections.abc import Mapping
from typing import Any

from app.events.frontends.frontend import Frontend, Record, made_object, made_record
from app.events.frontends.json_path import number, optional_text, text
from app.events.order import from_time, nanoseconds

SOURCE = "r2:s3"
_MEMBERS = {"account", "action", "bucket"}
_NAMES = {
    "PutObject": "s3:ObjectCreated:Put",
    "CopyObject": "s3:ObjectCreated:Copy",
    "CompleteMultipartUpload": "s3:ObjectCreated:CompleteMultipartUpload",
    "DeleteObject": "s3:ObjectRemoved:Delete",
    "LifecycleDeletion": "s3:LifecycleExpiration:Delete",
}


def matches(value: Mapping[str, Any]) -> bool:
    """Return whether the object is a message of R2."""
    return isinstance(value.get("object"), dict) and value.keys() >= _MEMBERS


def record(message: Record) -> Record:
    """Return the message's record. Raises `BadRecord`."""
    action, time = text(message, "action"), nanoseconds(message.get("eventTime"))
    thing = made_object(
        text(message, "object", "key"),
        size=number(message, "object", "size"),
        eTag=optional_text(message, "object", "eTag"),
        sequencer="" if time is None else from_time(time),
    )
    name, milliseconds = _NAMES.get(action, f"s3:{action}"), None if time is None else time // 10**6
    owner = optional_text(message, "account")
    return made_record(SOURCE, name, text(message, "bucket"), thing, milliseconds, message, owner)


R2 = Frontend("r2", record)
