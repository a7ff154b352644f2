"""Amazon EventBridge's events of S3 (§13): their own shape, with the key unencoded; `original` keeps the event."""

from collections.abc import Mapping
from typing import Any

from app.events import minio_json
from app.events.errors import BadRecord, excerpt
from app.events.frontends import aws
from app.events.frontends.frontend import Frontend
from app.events.frontends.json_path import number, optional_text, text, without_empty

# detail-type → reason or deletion-type → event name (§13)
_CREATED = {
    "PutObject": "Put",
    "POST Object": "Post",
    "CopyObject": "Copy",
    "CompleteMultipartUpload": "CompleteMultipartUpload",
}
_DELETED = {"Permanently Deleted": "Delete", "Delete Marker Created": "DeleteMarkerCreated"}
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
        "original": event,
    }


def _name(event: Mapping[str, Any]) -> str:
    kind = text(event, "detail-type")
    reason = optional_text(event, "detail", "reason")
    if kind == "Object Created":
        return f"s3:ObjectCreated:{_CREATED.get(reason) or _joined(reason) or 'Put'}"
    if kind == "Object Deleted":
        deletion = optional_text(event, "detail", "deletion-type")
        family = "s3:LifecycleExpiration" if reason == "Lifecycle Expiration" else "s3:ObjectRemoved"
        return f"{family}:{_DELETED.get(deletion) or _joined(deletion) or 'Delete'}"
    return _OTHERS.get(kind) or f"s3:{_joined(kind)}"  # newer, unknown kinds get a name from the kind itself


def _joined(words: str) -> str:
    return "".join(words.split())


EVENTBRIDGE = Frontend("eventbridge", record, aws.order)
