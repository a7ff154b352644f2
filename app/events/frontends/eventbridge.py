"""Amazon EventBridge's events of S3 (§13): their own shape, with the key unencoded; `original` keeps the event."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from app.events import minio_json
from app.events.errors import BadRecord, excerpt
from app.events.frontends import s3_records
from app.events.frontends.frontend import Frontend, number, optional_text, text, without_empty
from app.events.names import ContentChange, content_change

# detail-type → reason or deletion-type, in lower case without spaces → event name (§13)
_CREATED = {
    "putobject": "Put",
    "postobject": "Post",
    "copyobject": "Copy",
    "completemultipartupload": "CompleteMultipartUpload",
}
_DELETED = {"permanentlydeleted": "Delete", "deletemarkercreated": "DeleteMarkerCreated"}
_REPLAY = "replay-name"
_MEMBER = re.compile("[A-Za-z0-9]{1,64}")
_EXPIRED = "lifecycleexpiration"
_OF_EMULATOR = 3  # words: ministack 1.3.69 has `Object`, then the family and the member of a notification's name
_REMOVALS = (ContentChange.REMOVED, ContentChange.DELETE_MARKER)
_OTHERS = {
    "Object Restore Initiated": "s3:ObjectRestore:Post",
    "Object Restore Completed": "s3:ObjectRestore:Completed",
    "Object Restore Expired": "s3:ObjectRestore:Delete",
    "Object Tags Added": "s3:ObjectTagging:Put",
    "Object Tags Deleted": "s3:ObjectTagging:Delete",
    "Object ACL Updated": "s3:ObjectAcl:Put",
    "Object Storage Class Changed": "s3:LifecycleTransition",
    "Object Access Tier Changed": "s3:IntelligentTiering",
}


def matches(value: Mapping[str, Any]) -> bool:
    """Return whether the object has EventBridge's shape; `record` checks that it is an event of S3."""
    return "detail-type" in value and "source" in value


def record(event: dict[str, Any]) -> dict[str, Any]:
    """Return the event as MinIO's record. Raises `BadRecord`."""
    source = text(event, "source")
    if source != "aws.s3":
        raise BadRecord("source", f'is {excerpt(source)}; it must be "aws.s3"')
    bucket = text(event, "detail", "bucket", "name")
    region = optional_text(event, "region")
    requester = optional_text(event, "detail", "requester")
    address = optional_text(event, "detail", "source-ip-address")
    moment = minio_json.milliseconds(optional_text(event, "time"))
    thing = without_empty(
        {
            "key": minio_json.encode_key(text(event, "detail", "object", "key")),
            "size": number(event, "detail", "object", "size"),
            "eTag": optional_text(event, "detail", "object", "etag"),
            "versionId": optional_text(event, "detail", "object", "version-id"),
            "sequencer": optional_text(event, "detail", "object", "sequencer"),
        }
    )
    return {
        "eventVersion": "2.0",
        "eventSource": "aws:s3",
        "awsRegion": region,
        "eventTime": "" if moment is None else minio_json.timestamp(moment),
        "eventName": _name(event),
        "userIdentity": {"principalId": requester},
        "requestParameters": {"principalId": requester, "region": region, "sourceIPAddress": address},
        "responseElements": {"x-amz-request-id": optional_text(event, "detail", "request-id")},
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": "Config",
            "bucket": {
                "name": bucket,
                "ownerIdentity": {"principalId": optional_text(event, "account")},
                "arn": f"arn:aws:s3:::{bucket}",
            },
            "object": thing,
        },
        "source": {"host": address, "port": "", "userAgent": ""},
        # An event of a replay is the same event again.
        "original": {name: value for name, value in event.items() if name != _REPLAY},
    }


def _name(event: Mapping[str, Any]) -> str:
    """Return the event's name: the kind decides what has happened, the reason only how."""
    kind = text(event, "detail-type")
    reason = _joined(optional_text(event, "detail", "reason"))
    if kind == "Object Created":
        return _refined("s3:ObjectCreated", _CREATED, reason, "Put", (ContentChange.CREATED,))
    if kind == "Object Deleted":
        family = "s3:LifecycleExpiration" if reason.lower() == _EXPIRED else "s3:ObjectRemoved"
        deletion = _joined(optional_text(event, "detail", "deletion-type"))
        return _refined(family, _DELETED, deletion, "Delete", _REMOVALS)
    words = kind.split()
    if len(words) == _OF_EMULATOR and words[1].startswith(words[0]):
        return f"s3:{words[1]}:{words[2]}"
    return _OTHERS.get(kind) or f"s3:{_joined(kind)}"  # newer, unknown kinds get a name from the kind itself


def _refined(family: str, names: Mapping[str, str], reason: str, usual: str, changes: Collection[ContentChange]) -> str:
    """Return the name in the family that the reason stands for; the usual one if that would mean another change."""
    name = f"{family}:{names.get(reason.lower(), reason)}"
    return name if _MEMBER.fullmatch(reason) and content_change(name) in changes else f"{family}:{usual}"


def _joined(words: str) -> str:
    return "".join(words.split())


EVENTBRIDGE = Frontend("eventbridge", record, s3_records.order_of_aws)
