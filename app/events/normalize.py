"""Make an event from a normalized record: read and check the members that the service uses."""

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

from app.events import minio_json
from app.events.buckets import recorded_name
from app.events.errors import BadRecord, excerpt
from app.events.limits import MAX_EVENT_BYTES
from app.events.model import Effect, Event
from app.events.names import family_of, is_known
from app.events.order import sequencer_of

# The limits of the outbox's columns; all are above S3's own limits.
_MAX_NAME = 255
_MAX_BUCKET = 255
MAX_VERSION = 1024
MAX_KEY_BYTES = minio_json.MAX_KEY_BYTES
_MAX_DIGITS = 18  # of a size; more may not fit into 64 bits

_MAX_PATH, _MAX_STEP = 8, 100  # members and characters of each that lead to what is too long

_KEYLESS = ("s3:Bucket", "s3:Scanner:")  # events of a bucket, or of the root folder
_NO_VERSION = "1"  # sent by MinIO until 2018 if there was no version (§1.9)
_OLD_SOURCES = ("minio:s3", "aws:s3")  # as which a MinIO of then sends


def event_of(
    record: dict[str, Any],
    arrived: int,
    nesting: int,
    order: Callable[[Mapping[str, Any]], str] = sequencer_of,
    origin: str = "",
    tenant: str = "",
) -> Event:
    """Make an event from a record; `order` is that of its frontend, `tenant` what its sender gives. Raises `BadRecord`.

    Its time is the record's, or `arrived` (milliseconds since 1970) if the record has no valid time. In the record, a
    size that is a text becomes a number, an ETag loses its quotes, and a bucket's name begins with its tenant.
    `nesting` is how deep objects and arrays may be nested.
    """
    name = record.get("eventName")
    if type(name) is not str or not 0 < len(name) <= _MAX_NAME or "\0" in name:
        raise _unusable("eventName", name, 'text such as "s3:ObjectCreated:Put"', _MAX_NAME)
    bucket, thing = _bucket_and_object(record, tenant)
    encoded = thing.get("key", "")
    if type(encoded) is not str or (not encoded and not _may_lack_key(name)):
        raise _unusable("s3.object.key", thing.get("key"), "the object's key as text")
    try:
        key = minio_json.decode_key(encoded)
    except minio_json.BadKey as problem:
        raise BadRecord("s3.object.key", f"{excerpt(encoded)} {problem}") from None
    if "\0" in key:
        raise BadRecord("s3.object.key", f"{excerpt(encoded)} contains U+0000, which no S3 key may contain")
    if len(key) > MAX_KEY_BYTES // 4 and len(key.encode()) > MAX_KEY_BYTES:
        raise BadRecord("s3.object.key", f"has {len(key.encode())} bytes; at most {MAX_KEY_BYTES} are allowed")
    version = _optional(thing, "versionId", MAX_VERSION) if "versionId" in thing else ""
    _mend(thing)
    moment = record.get("eventTime")
    time = minio_json.milliseconds(moment) if type(moment) is str else None
    text = _text(record, nesting)
    return Event(
        minio_json.digest(record),
        name,
        bucket,
        key,
        "" if version == _NO_VERSION and record.get("eventSource") in _OLD_SOURCES else version,
        order(record),
        arrived if time is None else time,
        text,
        Effect.NONE,
        "",
        origin,
    )


def is_recordable(key: str, version: str) -> bool:
    """Return whether an event can have this key and version."""
    is_short = len(key) <= MAX_KEY_BYTES // 4 or len(key.encode()) <= MAX_KEY_BYTES
    return bool(key) and is_short and len(version) <= MAX_VERSION and "\0" not in key and "\0" not in version


def _bucket_and_object(record: dict[str, Any], tenant: str) -> tuple[str, dict[str, Any]]:
    s3 = record.get("s3")
    if type(s3) is not dict:
        raise _unusable("s3", s3, "an object with bucket and object")
    bucket = s3.get("bucket")
    if type(bucket) is not dict:
        raise _unusable("s3.bucket", bucket, "an object with the bucket's name")
    name = bucket.get("name")
    if type(name) is not str or not 0 < len(name) <= _MAX_BUCKET or "\0" in name:
        raise _unusable("s3.bucket.name", name, "the bucket's name as text", _MAX_BUCKET)
    if name[-1] == " ":
        # MySQL and MariaDB could not distinguish it from the name without the space.
        raise BadRecord("s3.bucket.name", f"{excerpt(name)} ends with a space, which no S3 bucket name may")
    if tenant:
        bucket["name"] = name = recorded_name(bucket, tenant)
        if len(name) > _MAX_BUCKET:
            raise _unusable("s3.bucket.name", name, "the bucket's name as text, with its tenant", _MAX_BUCKET)
    thing = s3.get("object", {})
    if type(thing) is not dict:
        raise _unusable("s3.object", thing, "an object with the object's key")
    return name, thing


def _mend(thing: dict[str, Any]) -> None:
    """Make a text size a number, and remove the quotes around an ETag, which S3 has in its headers only."""
    if "etag" in thing:  # RustFS before 2026
        thing.setdefault("eTag", thing.pop("etag"))
    size, etag = thing.get("size"), thing.get("eTag")
    if type(size) is str and size.isascii() and size.isdigit() and len(size) <= _MAX_DIGITS:
        thing["size"] = int(size)
    if type(etag) is str and len(etag) > 1 and etag[0] == '"' == etag[-1]:
        thing["eTag"] = etag[1:-1]


def _may_lack_key(name: str) -> bool:
    return name.startswith(_KEYLESS) or not (is_known(name) or family_of(name))


def _optional(thing: dict[str, Any], member: str, longest: int) -> str:
    value = thing.get(member)
    if value is None:
        return ""
    if type(value) is not str or len(value) > longest or "\0" in value:
        raise _unusable(f"s3.object.{member}", value, "text, or left out", longest)
    return value


def _text(record: dict[str, Any], nesting: int) -> str:
    try:
        text = minio_json.text(record, MAX_EVENT_BYTES)
    except minio_json.TooDeep:
        raise _too_deep(nesting) from None
    except minio_json.TooLong as error:
        raise _too_long(record, error.size) from None
    # Counting brackets is cheap and shows for nearly every record that it is not too deep; `in` is cheaper still.
    opened = text.count("{") + (text.count("[") if "[" in text else 0)
    if opened > nesting and minio_json.deeper_than(record, nesting):
        raise _too_deep(nesting)
    return text


def _too_deep(nesting: int) -> BadRecord:
    return BadRecord("it", f"is nested more than {nesting} deep")


def _too_long(record: dict[str, Any], size: int) -> BadRecord:
    """Return the problem of a too long record, with the path of the member that has most of it."""
    path: list[str] = []
    value: Any = record
    left = minio_json.size(record)
    while isinstance(value, dict) and value:
        name, inner, length = max(((*item, minio_json.size(item[1])) for item in value.items()), key=itemgetter(2))
        if 2 * length < left or len(path) == _MAX_PATH:
            break
        path.append(name if len(name) <= _MAX_STEP else f"{name[:_MAX_STEP]}…")
        value, left = inner, length
    return BadRecord(
        ".".join(path) or "it",
        f"makes an event of {size} bytes as it is stored (JSON, in which <, > and & are escaped); an event has at most "
        f"{MAX_EVENT_BYTES}: send less in it",
        limit=MAX_EVENT_BYTES,
    )


def _unusable(field: str, value: Any, expected: str, longest: int | None = None) -> BadRecord:
    if value is None:
        return BadRecord(field, f"is missing; it must be {expected}")
    limit = f" of at most {longest} characters, none of them U+0000" if longest and value else ""
    return BadRecord(field, f"is {excerpt(value)}; it must be {expected}{limit}")
