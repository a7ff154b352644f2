"""SeaweedFS's filer (§14.2, §14.3): changes of a file tree, of which only files in buckets are S3 objects.

The filer posts them to a webhook as JSON, or writes them to Kafka as Protocol Buffers with the path as the key. Of the
latter the body is made that the webhook has of the same change, so there is one form for both. `original` keeps the
whole message. Paths are raw. An event's order is the time at which the filer committed the entry; a deletion does not
tell its own time, so it comes just after what it deleted. Filers that report no such time give the entry's modification
time, in seconds or nanoseconds, which a deletion shares with what it deleted.

A version of `KEY` is the file `KEY.versions/v_ID`, a delete marker such a file without content; until it has its id, it
is no object. A key that ends with a slash is a folder with a content type; an object with others below its key is a
folder that says so. Other folders are no objects.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import orjson

from app.events import minio_json
from app.events.errors import BadEvents, BadRecord, excerpt
from app.events.frontends.frontend import (
    Frontend,
    Record,
    find,
    made_record,
    number,
    optional_text,
    text,
    without_empty,
)
from app.events.names import NULL

SOURCE = "seaweedfs:s3"
_BUCKETS = "/buckets/"
_TEMPORARY = ".uploads"  # parts of unfinished multipart uploads, directly under the bucket
_PUT = "s3:ObjectCreated:Put"
_MULTIPART = "s3:ObjectCreated:CompleteMultipartUpload"
_COPY = "s3:ObjectCreated:Copy"
_DELETE = "s3:ObjectRemoved:Delete"
_MARKER = "s3:ObjectRemoved:DeleteMarkerCreated"
_TAGGED, _UNTAGGED = "s3:ObjectCreated:PutTagging", "s3:ObjectCreated:DeleteTagging"
_ACL = "s3:ObjectAcl:Put"
_SECOND = 10**9  # ns
_LATEST = 253_402_300_800  # seconds: the year 10000

_VERSIONS, _VERSION_FILE = ".versions", "v_"
_UNFINISHED = re.compile("v_[0-9a-f]{8,64}")
_VERSION_ID, _IS_MARKER = "Seaweed-X-Amz-Version-Id", "Seaweed-X-Amz-Delete-Marker"
_SUPERSEDED = "Seaweed-X-Amz-Noncurrent-Since-Ns"  # added to a version when a newer one has been written
_ETAG, _GRANTS = "Seaweed-X-Amz-ETag", "Seaweed-X-Amz-Acl"
_IS_OBJECT = "x-seaweedfs-prefix-object"  # of a folder: it is the object of the same key too, with content of its own
_METADATA, _TAG = "x-amz-meta-", "x-amz-tagging"  # what names begin with, in lower case


class _Object(NamedTuple):
    """The object, or the version of one, that a path and its entry are."""

    bucket: str
    key: str
    version: str
    is_marker: bool


def matches(value: Mapping[str, Any]) -> bool:
    """Return whether the object has the webhook's shape."""
    return "event_type" in value and "key" in value and "message" in value


def records(event: Record) -> tuple[Record, ...]:
    """Return the change as MinIO's records: none if it concerns no object, two for a rename. Raises `BadRecord`.

    The entries decide what has happened, and `event_type` only if there is none: from 3.95 to 4.17 that is `rename` for
    every change of an entry.
    """
    path = text(event, "key")
    old, new = find(event, "message", "old_entry"), find(event, "message", "new_entry")
    _check_path(path, event)
    kind, new_path = change_of(path, find(event, "message"))
    kind = kind or text(event, "event_type")
    before, after = _object(path, old), _object(new_path, new)
    made: list[Record | None]
    match kind:
        case "create":
            made = [_created(event, after, new)]
        case "update":
            is_same = _named(before) == _named(after)
            name = _update(old, new) if is_same else _PUT
            # A folder whose key was deleted while there are objects below it is not an object any more, and one that
            # becomes the object of the same key is not that of the key with a slash any more.
            created = _created(event, after, new, name, _order(before, old) if is_same and before else None)
            made = [None if is_same else _removed(event, before, old), created]
        case "delete":
            made = [_removed(event, before, old)]
        case "rename" if not isinstance(new, dict):
            raise BadRecord("message.new_entry.name", "is missing; it must be text")
        case "rename":
            made = [_removed(event, before, old, _committed(new)), _created(event, after, new, _COPY)]
        case _:
            raise BadRecord("event_type", f"is {excerpt(kind)}; it must be create, update, delete or rename")
    return tuple(record for record in made if record is not None)


def _check_path(path: str, event: Record) -> None:
    """Raise `BadRecord` unless the path is that of the old entry, or of the new one if it is created."""
    member = "old_entry" if isinstance(find(event, "message", "old_entry"), dict) else "new_entry"
    folder, _, last = path.rstrip("/").rpartition("/")
    name, parent = optional_text(event, "message", member, "name"), optional_text(event, "message", "new_parent_path")
    if name and name != last:
        raise BadRecord(f"message.{member}.name", f"is {excerpt(name)}, which is not the end of key, {excerpt(path)}")
    if parent and name and member == "new_entry" and parent.rstrip("/") != folder.rstrip("/"):
        raise BadRecord("message.new_parent_path", f"is {excerpt(parent)}, which is not the folder of {excerpt(path)}")


def change_of(path: str, message: Any) -> tuple[str, str]:
    """Return what a message is, create, update, delete or rename, and the path of its new entry; "" for no entry.

    `path` is that of the old entry, or of the new one if it is created. An update too may name the folder.
    """
    old, new = find(message, "old_entry"), find(message, "new_entry")
    if not isinstance(old, dict) or not isinstance(new, dict):
        return ("create" if isinstance(new, dict) else "delete" if isinstance(old, dict) else ""), path
    folder, _, name = path.rpartition("/")
    new_folder, new_name = optional_text(message, "new_parent_path") or folder, optional_text(new, "name") or name
    if new_folder.rstrip("/") == folder.rstrip("/") and new_name == name:
        return "update", path
    return "rename", f"{new_folder.rstrip('/')}/{new_name}"


def _object(path: str, entry: Any) -> _Object | None:
    """Return the object at a path; None if it is not in a bucket, or if the entry is no object."""
    bucket, _, key = path.removeprefix(_BUCKETS).partition("/")
    if not path.startswith(_BUCKETS) or not bucket or not key:
        return None
    if bucket.startswith(".") or key.split("/", 1)[0] == _TEMPORARY:  # the filer's own files
        return None
    if find(entry, "is_directory") is True and _extended_text(entry, _IS_OBJECT) != "true":
        is_key = bool(optional_text(entry, "attributes", "mime")) and not find(entry, "chunks")
        return _Object(bucket, f"{key}/", "", False) if is_key else None
    version = _extended_text(entry, _VERSION_ID)
    folder, _, name = key.rpartition("/")
    if version and folder.endswith(_VERSIONS) and name == f"{_VERSION_FILE}{version}":
        key = folder.removesuffix(_VERSIONS)
    elif not version and folder.endswith(_VERSIONS) and _UNFINISHED.fullmatch(name):
        return None  # until 4.17, a version gets its id by an update just after it was written
    return _Object(bucket, key, version, _extended_text(entry, _IS_MARKER) == "true") if key else None


def _named(thing: _Object | None) -> _Object | None:
    """Return the object with a version: what was written without versioning is the null version."""
    return thing and thing._replace(version=thing.version or NULL)


def _update(old: Any, new: Any) -> str | None:
    """Return the name of what an update of an entry changed; None for nothing that S3 has an event for."""
    if old is None or _bytes_of(old) != _bytes_of(new):
        return _PUT
    had, has = _extended(old), _extended(new)
    mime = ("attributes", "mime")
    if find(old, *mime) != find(new, *mime) or _starting(had, _METADATA) != _starting(has, _METADATA):
        return _COPY  # of an object onto itself, with other metadata
    if _starting(had, _TAG) != _starting(has, _TAG):
        return _TAGGED if _starting(has, _TAG) else _UNTAGGED
    if had.get(_GRANTS) != has.get(_GRANTS):
        return _ACL
    if had == has:
        return _PUT  # nothing shows what was changed
    return None if _without(had, _SUPERSEDED) == _without(has, _SUPERSEDED) else _TAGGED


def _bytes_of(entry: Any) -> tuple[Any, ...]:
    """Return what identifies the entry's bytes; an old and a new entry name the same chunk in different ways."""
    chunks = find(entry, "chunks")
    parts = [
        tuple(find(chunk, name) for name in ("offset", "size", "modified_ts_ns", "e_tag"))
        for chunk in (chunks if isinstance(chunks, list) else ())
    ]
    attributes = [find(entry, "attributes", name) for name in ("mtime", "mtime_ns", "md5", "file_size")]
    return parts, find(entry, "content"), attributes


def _created(
    event: Record, thing: _Object | None, entry: Any, name: str | None = _PUT, replaced: int | None = None
) -> Record | None:
    """Return the creation of an object; `replaced` is the order of the content that it had before."""
    if thing is None or name is None:
        return None
    modified = _modified(entry)
    # A renamed file keeps its modification time, which is not when it got its name. A renamed version stays older than
    # the one that had superseded it, which may be renamed before it.
    order = _superseded(entry) or _committed(entry) if name == _COPY else _order(thing, entry)
    if order and replaced and order < replaced and not _committed(entry):
        order = None  # another file was renamed to it, and has kept its time
    if thing.is_marker:
        return _record(event, _MARKER, thing, {}, modified, order)
    content = _content(entry)
    if name == _PUT and "-" in _extended_text(entry, _ETAG):
        name = _MULTIPART
    return _record(event, name, thing, without_empty(content), modified, order)


def _removed(event: Record, thing: _Object | None, entry: Any, time: int | None = None) -> Record | None:
    """Return the removal of an object; without a `time` of its own it comes just after what it removes."""
    if thing is None:
        return None
    order = _order(thing, entry)
    is_exact = order is not None and order % _SECOND
    return _record(event, _DELETE, thing, {}, _modified(entry), time or (order + 1 if order and is_exact else order))


def _record(
    event: Record, name: str, thing: _Object, content: Record, modified: int | None, order: int | None
) -> Record:
    members = {"key": minio_json.encode_key(thing.key), **content}
    if thing.version:
        members["versionId"] = thing.version
    if order is not None:
        members["sequencer"] = f"{order:016X}"
    milliseconds = None if modified is None else modified // 1_000_000
    return made_record(SOURCE, name, thing.bucket, members, milliseconds, event)


def _order(thing: _Object, entry: Any) -> int | None:
    """Return when the object got its content (ns since 1970), or None if nothing says so.

    Filers of before 4.45 do not report their commit, and those of before 4.20 the file's time in seconds. They send the
    changes of a second in any order. There the time of an object's newest chunk is exact. Versions have seconds only,
    because a delete marker, which has no chunks, would be before what it hides.
    """
    if committed := _committed(entry):
        return committed
    chunks = None if thing.version else find(entry, "chunks")
    written = [_possible(number(chunk, "modified_ts_ns")) for chunk in (chunks if isinstance(chunks, list) else ())]
    return max([time for time in (_modified(entry), *written) if time], default=None)


def _committed(entry: Any) -> int | None:
    """Return when the filer committed the entry (ns since 1970), or None if it does not report that."""
    return _possible(number(entry, "commit_ts_ns"))


def _superseded(entry: Any) -> int | None:
    """Return when a newer version of the object was written (ns since 1970), or None for the newest version."""
    return _possible(number({_SUPERSEDED: _extended_text(entry, _SUPERSEDED)}, _SUPERSEDED))


def _possible(time: int | None) -> int | None:
    return time if time and 0 < time < _LATEST * _SECOND else None


def _modified(entry: Any) -> int | None:
    """Return nanoseconds since 1970, or None if the entry has no time or an impossible one."""
    seconds = number(entry, "attributes", "mtime")
    nanoseconds = number(entry, "attributes", "mtime_ns") or 0
    if seconds is None or not 0 < seconds < _LATEST or not 0 <= nanoseconds < _SECOND:
        return None
    return seconds * _SECOND + nanoseconds


def _content(entry: Any) -> Record:
    mime = optional_text(entry, "attributes", "mime")
    metadata = {"content-type": mime} if mime else {}
    for name, value in _starting(_extended(entry), _METADATA).items():
        metadata[name] = (_decoded(value) or b"").decode(errors="replace")
    return {
        "size": _size(entry),
        "eTag": _etag(entry),
        "contentType": mime,
        "userMetadata": dict(sorted(metadata.items())),
    }


def _etag(entry: Any) -> str:
    """Return the ETag that SeaweedFS lists; "" if the entry has nothing that it is made of."""
    if etag := _extended_text(entry, _ETAG).strip('"'):
        return etag
    if digest := _decoded(find(entry, "attributes", "md5")):
        return digest.hex()
    chunks = find(entry, "chunks")  # a file that was appended to, or written through a mount
    digests = [_decoded(find(chunk, "e_tag")) or b"" for chunk in (chunks if isinstance(chunks, list) else ())]
    if len(digests) > 1:
        return f"{hashlib.md5(b''.join(digests), usedforsecurity=False).hexdigest()}-{len(digests)}"
    return digests[0].hex() if digests else ""


def _size(entry: Any) -> int:
    size = number(entry, "attributes", "file_size")
    chunks = find(entry, "chunks")
    if size is None and isinstance(chunks, list):
        size = sum(number(chunk, "size") or 0 for chunk in chunks)
    return size if size is not None else len(_decoded(find(entry, "content")) or b"")


def _extended(entry: Any) -> Mapping[str, Any]:
    extended = find(entry, "extended")
    return extended if isinstance(extended, dict) else {}


def _extended_text(entry: Any, name: str) -> str:
    return (_decoded(_extended(entry).get(name)) or b"").decode(errors="replace")


def _starting(extended: Mapping[str, Any], prefix: str) -> Mapping[str, Any]:
    return {name: value for name, value in extended.items() if name.lower().startswith(prefix)}


def _without(extended: Mapping[str, Any], excluded: str) -> Mapping[str, Any]:
    return {name: value for name, value in extended.items() if name != excluded}


def _decoded(value: Any) -> bytes | None:
    """Return decoded base64 text; None if it is none. Small files are in `content`, digests in `md5`."""
    try:
        return base64.b64decode(value, validate=True) if isinstance(value, str) else None
    except (binascii.Error, ValueError):
        return None


SEAWEEDFS = Frontend("seaweedfs", records)


# Protocol Buffers of `filer_pb.EventNotification`: only the fields that make an event are read, by their numbers in
# `weed/pb/filer.proto`.
_BEGINNINGS = (b"\x0a", b"\x12")  # of an old or a new entry
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_INTEGER, _FLAG, _TEXT, _BASE64 = "integer", "flag", "text", "base64"
_MAX_VARINT_BYTES = 10
_MAX_FIELDS = 500_000  # of all entries and chunks; a filer joins chunks from 10,000 on, and each has a dozen

_CHUNK_FIELDS = {2: ("offset", _INTEGER), 3: ("size", _INTEGER), 4: ("modified_ts_ns", _INTEGER), 5: ("e_tag", _TEXT)}
_ATTRIBUTE_FIELDS = {
    1: ("file_size", _INTEGER), 2: ("mtime", _INTEGER), 7: ("mime", _TEXT), 14: ("md5", _BASE64),
    19: ("mtime_ns", _INTEGER),
}  # fmt: skip
_EXTENDED_FIELDS = {1: ("key", _TEXT), 2: ("value", _BASE64)}
_ENTRY_FIELDS: Mapping[int, tuple[str, Any]] = {
    1: ("name", _TEXT), 2: ("is_directory", _FLAG), 3: ("chunks", [_CHUNK_FIELDS]),
    4: ("attributes", _ATTRIBUTE_FIELDS), 5: ("extended", [_EXTENDED_FIELDS]),
    6: ("commit_ts_ns", _INTEGER), 9: ("content", _BASE64),
}  # fmt: skip
_NOTIFICATION_FIELDS = {1: ("old_entry", _ENTRY_FIELDS), 2: ("new_entry", _ENTRY_FIELDS), 4: ("new_parent_path", _TEXT)}


def is_filer_message(path: str, body: bytes) -> bool:
    """Return whether a message with this key is one: no JSON begins so, and no other frontend's key with a slash."""
    return path.startswith("/") and body[:1] in _BEGINNINGS


def is_filer_change(body: bytes) -> bool:
    """Return whether a body is one by its content, whatever its key was."""
    if body[:1] not in _BEGINNINGS:
        return False
    try:
        return not {"old_entry", "new_entry"}.isdisjoint(_read(body, _NOTIFICATION_FIELDS, iter(range(_MAX_FIELDS))))
    except ValueError:
        return False


def webhook_body(path: str, body: bytes) -> bytes:
    """Return the body of the webhook for this message. Raises `BadEvents` for what is no such message."""
    try:
        message = _read(body, _NOTIFICATION_FIELDS, iter(range(_MAX_FIELDS)))
    except ValueError as error:
        raise BadEvents(f"The body is no message of a SeaweedFS filer: {error}.") from None
    for name in ("old_entry", "new_entry"):
        if name in message:
            entry = message[name]
            entry["extended"] = {pair.get("key", ""): pair.get("value", "") for pair in entry.get("extended", [])}
    kind, _ = change_of(path, message)
    return orjson.dumps({"event_type": kind or "delete", "key": path, "message": message})


def _read(data: bytes, fields: Mapping[int, tuple[str, Any]], turns: Iterator[int]) -> dict[str, Any]:
    """Return the known fields of a message; those in a list may be there any number of times.

    Every field takes one of the `turns`. Raises `ValueError`, also if there are too few.
    """
    read: dict[str, Any] = {}
    for field, value in _fields(data, turns):
        name, kind = fields.get(field, ("", None))
        if kind is None:
            continue
        if isinstance(kind, list):
            read.setdefault(name, []).append(_value(value, kind[0], turns))
        else:
            read[name] = _value(value, kind, turns)
    return read


def _value(value: int | bytes, kind: Any, turns: Iterator[int]) -> Any:
    if kind in (_INTEGER, _FLAG):
        if not isinstance(value, int):
            raise ValueError("a field that should be a number is none")
        return bool(value) if kind == _FLAG else value - (1 << 64 if value >> 63 else 0)
    if not isinstance(value, bytes):
        raise ValueError("a field that should be bytes is a number")  # noqa: TRY004 - of the message, not of the program
    if isinstance(kind, dict):
        return _read(value, kind, turns)
    return value.decode() if kind == _TEXT else base64.b64encode(value).decode()


def _fields(data: bytes, turns: Iterator[int]) -> Iterator[tuple[int, int | bytes]]:
    offset = 0
    while offset < len(data):
        if next(turns, None) is None:
            raise ValueError(f"it has more than {_MAX_FIELDS:,} fields")
        tag, offset = _varint(data, offset)
        field, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, offset = _varint(data, offset)
            yield field, value
            continue
        size = {_FIXED64: 8, _FIXED32: 4}.get(wire, 0)
        if wire == _BYTES:
            size, offset = _varint(data, offset)
        elif not size:
            raise ValueError(f"a field has the wire type {wire}")
        if offset + size > len(data):
            raise ValueError("it ends within a field")
        yield field, data[offset : offset + size]
        offset += size


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(data[offset : offset + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value & (2**64 - 1), offset + index + 1
    raise ValueError("a number has no end")
