"""Records of the S3 shape, as sent by MinIO and RustFS, by AWS, and by Ceph (§1.4, §12.3, §13)."""

from collections.abc import Callable
from typing import Any

from app.events import minio_json
from app.events.errors import BadRecord, excerpt

Record = dict[str, Any]


def form_of(record: Record) -> Callable[[Record], Record]:
    """Return the function that normalises this record, by its `eventSource` or else by the form of its name.

    AWS and MinIO before 2018 both send `aws:s3`; only MinIO's names begin with `s3:` (§1.9, §13).
    """
    source = record.get("eventSource")
    if source in ("minio:s3", "rustfs:s3"):  # a tuple: the received value may be unhashable
        return as_sent
    if source == "ceph:s3":
        return ceph
    name = record.get("eventName")
    return as_sent if isinstance(name, str) and name.startswith("s3:") else aws


def as_sent(record: Record) -> Record:
    """MinIO, old MinIO, RustFS: return the record unchanged, byte for byte; the others are normalised to its form."""
    return record


def aws(record: Record) -> Record:
    """AWS S3: prefix the name with `s3:`, and encode the key's `/` as MinIO does; change nothing else."""
    _prefix_name(record)
    thing = _object(record)
    key = thing.get("key")
    if isinstance(key, str):
        try:
            thing["key"] = minio_json.encode_key(minio_json.decode_key(key))
        except minio_json.BadKey as problem:
            raise BadRecord("s3.object.key", f"{excerpt(key)} {problem}") from None
    return record


def ceph(record: Record) -> Record:
    """Ceph RGW: like `aws`, but the key is unencoded; make a text size a number, copy `metadata` to `userMetadata`."""
    _prefix_name(record)
    thing = _object(record)
    key, size = thing.get("key"), thing.get("size")
    if isinstance(key, str):
        thing["key"] = minio_json.encode_key(key)
    if isinstance(size, str) and size.isascii() and size.isdigit() and len(size) < 20:
        thing["size"] = int(size)
    named = _pairs(thing.get("metadata"))
    if named and "userMetadata" not in thing:
        thing["userMetadata"] = dict(sorted(named.items()))
    return record


def _prefix_name(record: Record) -> None:
    name = record.get("eventName")
    if isinstance(name, str) and name and not name.startswith("s3:"):
        record["eventName"] = f"s3:{name}"


def _object(record: Record) -> Record:
    s3 = record.get("s3")
    thing = s3.get("object") if isinstance(s3, dict) else None
    return thing if isinstance(thing, dict) else {}


def _pairs(found: object) -> dict[str, str]:
    """Return `[{"key": …, "val": …}]` as a map, without entries of another shape (the original record keeps them)."""
    if not isinstance(found, list):
        return {}
    pairs = [(each.get("key"), each.get("val")) for each in found if isinstance(each, dict)]
    return {name: value for name, value in pairs if isinstance(name, str) and isinstance(value, str)}
