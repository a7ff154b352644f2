"""Backblaze B2, by the webhook of an event notification rule.

Keys are raw. Every bucket has versions, of which a hide marker is one: it is S3's delete marker. An event's order is
its time, in milliseconds. There is no ETag.
"""

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from typing import Any

from app.events.frontends.frontend import Frontend, Record, made_object, made_record
from app.events.frontends.json_path import number, optional_text, text
from app.events.order import from_time

SOURCE = "b2:s3"
SIGNATURE_HEADER = "X-Bz-Event-Notification-Signature"
_KIND, _TEST, _LIFECYCLE = "b2:", "TestEvent", "LifecycleRule"
_VERSION = "v1="
_CREATED = {
    "Upload": "Put",
    "Replica": "Put",
    "MultipartUpload": "CompleteMultipartUpload",
    "MultipartReplica": "CompleteMultipartUpload",
}


def matches(value: Mapping[str, Any]) -> bool:
    """Return whether the object is an event of B2."""
    return optional_text(value, "eventType").startswith(_KIND)


def is_signed(body: bytes | bytearray, signature: str, secrets: Iterable[str]) -> bool:
    """Return whether the header's value is the signature of the body, byte for byte as sent, by one of the secrets."""
    given = signature.encode()
    made = [_VERSION + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest() for secret in secrets]
    return any(hmac.compare_digest(given, one.encode()) for one in made)


def records(event: Record) -> tuple[Record, ...]:
    """Return the event's record; none for a test. Raises `BadRecord`."""
    family, _, member = text(event, "eventType").removeprefix(_KIND).partition(":")
    if family == _TEST:
        return ()
    removed = "s3:LifecycleExpiration" if member == _LIFECYCLE else "s3:ObjectRemoved"
    match family:
        case "ObjectCreated":
            name = f"s3:ObjectCreated:{_CREATED.get(member, member)}"
        case "ObjectDeleted":
            name = f"{removed}:{'Delete' if member in ('', _LIFECYCLE) else member}"
        case "HideMarkerCreated":
            name = f"{removed}:DeleteMarkerCreated"
        case _:
            name = f"s3:{family}:{member}"
    time = number(event, "eventTimestamp")
    thing = made_object(
        text(event, "objectName"),
        size=number(event, "objectSize"),
        versionId=optional_text(event, "objectVersionId"),
        sequencer="" if time is None or time < 0 else from_time(time * 10**6),
    )
    owner = optional_text(event, "accountId")
    return (made_record(SOURCE, name, text(event, "bucketName"), thing, time, event, owner),)


B2 = Frontend("b2", records)
