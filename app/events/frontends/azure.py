"""Azure Blob Storage, by Event Grid, in its own schema or as CloudEvents.

A container is the bucket, and its blob's name the raw key. `sequencer` orders the events of a blob, and only these, so
an event's order is its second and then its sequencer. A blob's renaming has the URLs of both names, in which a name may
be encoded or not; its content is unknown. An event of a folder names no blob in it.
"""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from app.events.errors import BadRecord, excerpt
from app.events.frontends.frontend import Frontend, Record, find, made_object, made_record, number, optional_text, text
from app.events.order import from_time, nanoseconds

SOURCE = "azure:s3"
_KIND = "Microsoft.Storage."
_SUBJECT = re.compile(r"/?blobServices/default/containers/([^/]+)/blobs/(.+)", re.DOTALL)
_ACCOUNT = re.compile(r"/storageAccounts/([^/]+)")
_HEXADECIMAL = re.compile("[0-9A-Fa-f]{1,48}")
_OF_NO_BLOB = re.compile(r"Directory|.*PolicyCompleted\Z")
_CREATED = {"PutBlockList": "CompleteMultipartUpload", "CopyBlob": "Copy"}  # by `data.api`
_REMOVED = "s3:ObjectRemoved:Delete"
_NAMES = {
    "BlobDeleted": _REMOVED,
    "BlobRenamed": "s3:ObjectCreated:Copy",
    "BlobTierChanged": "s3:LifecycleTransition",
    "AsyncOperationInitiated": "s3:ObjectRestore:Post",
}


def matches(value: Mapping[str, Any]) -> bool:
    """Return whether the object is an event of Azure Storage."""
    return _kind(value).startswith(_KIND)


def records(event: Record) -> tuple[Record, ...]:
    """Return the event's records: none if it concerns no blob, two for a renaming. Raises `BadRecord`."""
    kind = _kind(event).removeprefix(_KIND)
    if _OF_NO_BLOB.match(kind):
        return ()
    subject = text(event, "subject")
    parts = _SUBJECT.fullmatch(subject)
    if parts is None:
        raise BadRecord("subject", f"is {excerpt(subject)}; it must be /blobServices/default/containers/…/blobs/…")
    bucket, key = parts.groups()
    name = _NAMES.get(kind) or f"s3:{kind}"
    if kind == "BlobCreated":
        name = f"s3:ObjectCreated:{_CREATED.get(optional_text(event, 'data', 'api'), 'Put')}"
    content = {
        "size": number(event, "data", "contentLength"),
        "eTag": optional_text(event, "data", "eTag"),
        "contentType": optional_text(event, "data", "contentType"),
    }
    made = [_record(event, name, bucket, key, content)]
    if kind == "BlobRenamed":
        made.insert(0, _record(event, _REMOVED, *_former(event, f"{bucket}/{key}"), {}))
    return tuple(made)


def _kind(event: Mapping[str, Any]) -> str:
    return optional_text(event, "eventType") or optional_text(event, "type")


def _record(event: Record, name: str, bucket: str, key: str, content: Record) -> Record:
    moment = find(event, "eventTime") or find(event, "time")
    time, sequencer = nanoseconds(moment), optional_text(event, "data", "sequencer")
    order = ""
    if time is not None:
        rest = sequencer.upper() if _HEXADECIMAL.fullmatch(sequencer) else ""
        order = from_time(time // 10**9 * 10**9 if rest else time, rest)
    account = _ACCOUNT.search(optional_text(event, "topic") or optional_text(event, "source"))
    thing = made_object(key, **content, sequencer=order)
    milliseconds = None if time is None else time // 10**6
    return made_record(SOURCE, name, bucket, thing, milliseconds, event, account[1] if account else "")


def _former(event: Record, path: str) -> tuple[str, str]:
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


AZURE = Frontend("azure", records)
