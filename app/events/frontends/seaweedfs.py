"""SeaweedFS's filer webhook (§14.2, §14.3): changes of a file tree, of which only files in buckets are S3 objects.

`original` keeps the whole message. The filer does not report when a deletion or a rename happened, so an event's time
and sequencer are the entry's modification time. But a renamed file keeps its modification time, which is not the time
at which it got its new name; so the copy has no sequencer and is ordered by its arrival.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from app.events import minio_json
from app.events.errors import BadRecord, excerpt
from app.events.frontends.json_path import find, number, optional_text, text, without_empty

_BUCKETS = "/buckets/"
_TEMPORARY = ".uploads"  # parts of unfinished multipart uploads, directly under the bucket
_PUT = "s3:ObjectCreated:Put"
_COPY = "s3:ObjectCreated:Copy"
_DELETE = "s3:ObjectRemoved:Delete"
_LATEST = 253_402_300_800  # seconds: the year 10000


def matches(value: Mapping[str, Any]) -> bool:
    """Return whether the object has the webhook's shape."""
    return "event_type" in value and "key" in value and "message" in value


def records(event: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return the change as MinIO's records: none if it concerns no object, two for a rename. Raises `BadRecord`."""
    kind, path = text(event, "event_type"), text(event, "key")
    old, new = find(event, "message", "old_entry"), find(event, "message", "new_entry")
    records: tuple[dict[str, Any] | None, ...]
    match kind:
        case "create" | "update":
            records = (_record(event, _PUT, path, new),)
        case "delete":
            records = (_record(event, _DELETE, path, old),)
        case "rename":
            records = (_record(event, _DELETE, path, old or new), _record(event, _COPY, _renamed(event, path), new))
        case _:
            raise BadRecord("event_type", f"is {excerpt(kind)}; it must be create, update, delete or rename")
    return tuple(record for record in records if record is not None)


def _renamed(event: Mapping[str, Any], path: str) -> str:
    folder = optional_text(event, "message", "new_parent_path") or path.rpartition("/")[0]
    return f"{folder.rstrip('/')}/{text(event, 'message', 'new_entry', 'name')}"


def _record(event: dict[str, Any], name: str, path: str, entry: Any) -> dict[str, Any] | None:
    bucket, _, key = path.removeprefix(_BUCKETS).partition("/")
    outside = not path.startswith(_BUCKETS) or not bucket or not key
    if outside or key.split("/", 1)[0] == _TEMPORARY or find(entry, "is_directory") is True:
        return None
    modified = _modified(entry)
    thing: dict[str, Any] = {"key": minio_json.encode_key(key)}
    if name != _DELETE:
        thing |= without_empty(_content(entry))
    if modified is not None and name != _COPY:
        thing["sequencer"] = f"{modified:016X}"
    return {
        "eventVersion": "2.0",
        "eventSource": "seaweedfs:s3",
        "awsRegion": "",
        "eventTime": "" if modified is None else minio_json.timestamp(modified // 1_000_000),
        "eventName": name,
        "userIdentity": {"principalId": ""},
        "requestParameters": None,
        "responseElements": {},
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": "Config",
            "bucket": {"name": bucket, "ownerIdentity": {"principalId": ""}, "arn": f"arn:aws:s3:::{bucket}"},
            "object": thing,
        },
        "source": {"host": "", "port": "", "userAgent": ""},
        "original": event,
    }


def _modified(entry: Any) -> int | None:
    """Return nanoseconds since 1970, or None if the entry has no time or an impossible one."""
    seconds = number(entry, "attributes", "mtime")
    nanoseconds = number(entry, "attributes", "mtime_ns") or 0
    if seconds is None or not 0 < seconds < _LATEST or not 0 <= nanoseconds < 10**9:
        return None
    return seconds * 10**9 + nanoseconds


def _content(entry: Any) -> dict[str, Any]:
    mime = optional_text(entry, "attributes", "mime")
    digest = _decoded(find(entry, "attributes", "md5"))
    extended = find(entry, "extended")
    metadata = {"content-type": mime} if mime else {}
    for name, value in (extended if isinstance(extended, dict) else {}).items():
        if name.lower().startswith("x-amz-meta-"):
            metadata[name] = (_decoded(value) or b"").decode(errors="replace")
    return {
        "size": _size(entry),
        "eTag": digest.hex() if digest else "",
        "contentType": mime,
        "userMetadata": dict(sorted(metadata.items())),
    }


def _size(entry: Any) -> int:
    size = number(entry, "attributes", "file_size")
    chunks = find(entry, "chunks")
    if size is None and isinstance(chunks, list):
        size = sum(number(chunk, "size") or 0 for chunk in chunks)
    return size if size is not None else len(_decoded(find(entry, "content")) or b"")


def _decoded(value: Any) -> bytes | None:
    """Return decoded base64 text; None if it is none. Small files are in `content`, digests in `md5`."""
    try:
        return base64.b64decode(value, validate=True) if isinstance(value, str) else None
    except (binascii.Error, ValueError):
        return None
