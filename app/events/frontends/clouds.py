"""Clouds with messages of their own form that take few rules: Azure, Backblaze B2, Cloudflare R2, Tigris and OCI.

Their keys are raw.
"""

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from app.events.errors import BadRecord, excerpt
from app.events.frontends.frontend import Frontend, Record, find, made_object, made_record, number, optional_text, text
from app.events.order import from_time, nanoseconds

# Azure Blob Storage, by Event Grid, in its own schema or as CloudEvents. A container is the bucket, and its blob's
# name the raw key. `sequencer` orders the events of a blob, and only these, so an event's order is its second and
# then its sequencer. A blob's renaming has the URLs of both names, in which a name may be encoded or not; its content
# is unknown. An event of a folder names no blob in it.
AZURE_SOURCE = "azure:s3"
_AZURE_KIND = "Microsoft.Storage."
_SUBJECT = re.compile(r"/?blobServices/default/containers/([^/]+)/blobs/(.+)", re.DOTALL)
_ACCOUNT = re.compile(r"/storageAccounts/([^/]+)")
_HEXADECIMAL = re.compile("[0-9A-Fa-f]{1,48}")
_OF_NO_BLOB = re.compile(r"Directory|.*PolicyCompleted\Z")
_AZURE_CREATED = {"PutBlockList": "CompleteMultipartUpload", "CopyBlob": "Copy"}  # by `data.api`
_AZURE_REMOVED = "s3:ObjectRemoved:Delete"
_AZURE_NAMES = {
    "BlobDeleted": _AZURE_REMOVED,
    "BlobRenamed": "s3:ObjectCreated:Copy",
    "BlobTierChanged": "s3:LifecycleTransition",
    "AsyncOperationInitiated": "s3:ObjectRestore:Post",
}


def is_azure(value: Mapping[str, Any]) -> bool:
    """Return whether the object is an event of Azure Storage."""
    return _azure_kind(value).startswith(_AZURE_KIND)


def _azure_records(event: Record) -> tuple[Record, ...]:
    """Return the event's records: none if it concerns no blob, two for a renaming. Raises `BadRecord`."""
    kind = _azure_kind(event).removeprefix(_AZURE_KIND)
    if _OF_NO_BLOB.match(kind):
        return ()
    subject = text(event, "subject")
    parts = _SUBJECT.fullmatch(subject)
    if parts is None:
        raise BadRecord("subject", f"is {excerpt(subject)}; it must be /blobServices/default/containers/…/blobs/…")
    bucket, key = parts.groups()
    name = _AZURE_NAMES.get(kind) or f"s3:{kind}"
    if kind == "BlobCreated":
        name = f"s3:ObjectCreated:{_AZURE_CREATED.get(optional_text(event, 'data', 'api'), 'Put')}"
    content = {
        "size": number(event, "data", "contentLength"),
        "eTag": optional_text(event, "data", "eTag"),
        "contentType": optional_text(event, "data", "contentType"),
    }
    made = [_azure_record(event, name, bucket, key, content)]
    if kind == "BlobRenamed":
        made.insert(0, _azure_record(event, _AZURE_REMOVED, *_former_place(event, f"{bucket}/{key}"), {}))
    return tuple(made)


def _azure_kind(event: Mapping[str, Any]) -> str:
    return optional_text(event, "eventType") or optional_text(event, "type")


def _azure_record(event: Record, name: str, bucket: str, key: str, content: Record) -> Record:
    moment = find(event, "eventTime") or find(event, "time")
    time, sequencer = nanoseconds(moment), optional_text(event, "data", "sequencer")
    order = ""
    if time is not None:
        rest = sequencer.upper() if _HEXADECIMAL.fullmatch(sequencer) else ""
        order = from_time(time // 10**9 * 10**9 if rest else time, rest)
    account = _ACCOUNT.search(optional_text(event, "topic") or optional_text(event, "source"))
    thing = made_object(key, **content, sequencer=order)
    milliseconds = None if time is None else time // 10**6
    return made_record(AZURE_SOURCE, name, bucket, thing, milliseconds, event, account[1] if account else "")


def _former_place(event: Record, path: str) -> tuple[str, str]:
    """Return the container and the blob before a renaming to `path`. Raises `BadRecord`."""
    source, target = text(event, "data", "sourceUrl"), optional_text(event, "data", "destinationUrl")
    former = source.partition("://")[2].partition("/")[2]
    if target.partition("://")[2].partition("/")[2] != path:  # the name is encoded
        if target and unquote(urlsplit(target).path.removeprefix("/")) != path:
            raise BadRecord("data.destinationUrl", f"is {excerpt(target)}, which is not the URL of {excerpt(path)}")
        former = unquote(urlsplit(source).path.removeprefix("/"))
    bucket, _, key = former.partition("/")
    if not key:
        raise BadRecord("data.sourceUrl", f"is {excerpt(source)}; it must be the URL of a blob in a container")
    return bucket, key


AZURE = Frontend("azure", _azure_records)


# Backblaze B2, by the webhook of an event notification rule. Every bucket has versions, of which a hide marker is
# one: it is S3's delete marker. An event's order is its time, in milliseconds. There is no ETag.
B2_SOURCE = "b2:s3"
B2_SIGNATURE_HEADER = "X-Bz-Event-Notification-Signature"
_B2_KIND, _TEST, _LIFECYCLE = "b2:", "TestEvent", "LifecycleRule"
_SIGNATURE_VERSION = "v1="
_B2_CREATED = {
    "Upload": "Put",
    "Replica": "Put",
    "MultipartUpload": "CompleteMultipartUpload",
    "MultipartReplica": "CompleteMultipartUpload",
}


def is_b2(value: Mapping[str, Any]) -> bool:
    """Return whether the object is an event of B2."""
    return optional_text(value, "eventType").startswith(_B2_KIND)


def is_signed_by_b2(body: bytes | bytearray, signature: str, secrets: Iterable[str]) -> bool:
    """Return whether the header's value is the signature of the body, byte for byte as sent, by one of the secrets."""
    given = signature.encode()
    made = [_SIGNATURE_VERSION + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest() for secret in secrets]
    return any(hmac.compare_digest(given, one.encode()) for one in made)


def _b2_records(event: Record) -> tuple[Record, ...]:
    """Return the event's record; none for a test. Raises `BadRecord`."""
    family, _, member = text(event, "eventType").removeprefix(_B2_KIND).partition(":")
    if family == _TEST:
        return ()
    removed = "s3:LifecycleExpiration" if member == _LIFECYCLE else "s3:ObjectRemoved"
    match family:
        case "ObjectCreated":
            name = f"s3:ObjectCreated:{_B2_CREATED.get(member, member)}"
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
    return (made_record(B2_SOURCE, name, text(event, "bucketName"), thing, time, event, owner),)


B2 = Frontend("b2", _b2_records)


# Cloudflare R2, by the messages that it puts into a queue of Cloudflare. A bucket has no versions. An event's order
# is its time, in milliseconds.
R2_SOURCE = "r2:s3"
_R2_MEMBERS = {"account", "action", "bucket"}
_R2_NAMES = {
    "PutObject": "s3:ObjectCreated:Put",
    "CopyObject": "s3:ObjectCreated:Copy",
    "CompleteMultipartUpload": "s3:ObjectCreated:CompleteMultipartUpload",
    "DeleteObject": "s3:ObjectRemoved:Delete",
    "LifecycleDeletion": "s3:LifecycleExpiration:Delete",
}


def is_r2(value: Mapping[str, Any]) -> bool:
    """Return whether the object is a message of R2."""
    return isinstance(value.get("object"), dict) and value.keys() >= _R2_MEMBERS


def _r2_record(message: Record) -> Record:
    """Return the message's record. Raises `BadRecord`."""
    action, time = text(message, "action"), nanoseconds(message.get("eventTime"))
    thing = made_object(
        text(message, "object", "key"),
        size=number(message, "object", "size"),
        eTag=optional_text(message, "object", "eTag"),
        sequencer="" if time is None else from_time(time),
    )
    name, milliseconds = _R2_NAMES.get(action, f"s3:{action}"), None if time is None else time // 10**6
    owner = optional_text(message, "account")
    return made_record(R2_SOURCE, name, text(message, "bucket"), thing, milliseconds, message, owner)


R2 = Frontend("r2", _r2_record)


# Tigris, by the webhook of a bucket's object notifications. A bucket has no versions. An event's order is its time,
# in milliseconds.
TIGRIS_SOURCE = "tigris:s3"
_TIGRIS_CREATED, _TIGRIS_DELETED = "OBJECT_CREATED_", "OBJECT_DELETED"


def is_tigris(value: Mapping[str, Any]) -> bool:
    """Return whether the object is an event of Tigris."""
    is_its = optional_text(value, "eventSource") == "tigris" or optional_text(value, "eventName").startswith("OBJECT_")
    return is_its and isinstance(value.get("object"), dict)


def _tigris_record(event: Record) -> Record:
    """Return the event's record. Raises `BadRecord`."""
    kind, time = text(event, "eventName"), nanoseconds(event.get("eventTime"))
    if kind.startswith(_TIGRIS_CREATED):
        name = f"s3:ObjectCreated:{_joined(kind.removeprefix(_TIGRIS_CREATED))}"
    else:
        name = "s3:ObjectRemoved:Delete" if kind == _TIGRIS_DELETED else f"s3:{_joined(kind)}"
    thing = made_object(
        text(event, "object", "key"),
        size=number(event, "object", "size"),
        eTag=optional_text(event, "object", "eTag"),
        sequencer="" if time is None else from_time(time),
    )
    milliseconds = None if time is None else time // 10**6
    return made_record(TIGRIS_SOURCE, name, text(event, "bucket"), thing, milliseconds, event)


def _joined(words: str) -> str:
    return "".join(word.capitalize() for word in words.split("_"))


TIGRIS = Frontend("tigris", _tigris_record)


# Oracle Cloud Infrastructure Object Storage, by its service Events: a topic of Notifications, a stream, or a
# function. Nothing orders the events of a second, and the version that an event concerns is not sent reliably. An
# ETag is not that of the S3 API, and there is no size.
OCI_SOURCE = "oci:s3"
_OCI_KIND = "com.oraclecloud.objectstorage."
_OCI_NAMES = {
    "createobject": "s3:ObjectCreated:Put",
    "updateobject": "s3:ObjectCreated:Put",
    "deleteobject": "s3:ObjectRemoved:Delete",
}


def is_oci(value: Mapping[str, Any]) -> bool:
    """Return whether the object is an event of OCI's Object Storage."""
    return optional_text(value, "eventType").startswith(_OCI_KIND)


def _oci_records(event: Record) -> tuple[Record, ...]:
    """Return the event's record; none for an event of a bucket. Raises `BadRecord`."""
    kind = text(event, "eventType").removeprefix(_OCI_KIND)
    if kind.endswith("bucket"):
        return ()
    time = nanoseconds(find(event, "eventTime"))
    thing = made_object(
        text(event, "data", "resourceName"),
        eTag=optional_text(event, "data", "additionalDetails", "eTag"),
        sequencer="" if time is None else from_time(time),
    )
    name, bucket = _OCI_NAMES.get(kind, f"s3:{kind}"), text(event, "data", "additionalDetails", "bucketName")
    owner = optional_text(event, "data", "additionalDetails", "namespace")
    return (made_record(OCI_SOURCE, name, bucket, thing, None if time is None else time // 10**6, event, owner),)


OCI = Frontend("oci", _oci_records)
