"""Apache Ozone, whose manager writes records of S3's form to Kafka (`S3EventNotificationStrategy`).

A key is raw and has its volume and bucket before it: `volume/bucket/key`. The ETag is a random UUID, which is left out.
There is no sequencer: an event's order is its time, then the index of its transaction. A rename is one event, of which
a removal and a copy are made; volumes have events too, which concern no bucket.
"""

import re
from collections.abc import Mapping
from typing import Any

from app.events import minio_json
from app.events.errors import BadRecord, excerpt
from app.events.frontends.frontend import Frontend, Record, object_of, prefix_name
from app.events.frontends.json_path import find, number
from app.events.order import from_time, nanoseconds

SOURCE = "ozone:s3"
_VOLUME = "s3:OzoneVolume"
_RENAMED, _REMOVED, _COPIED = "s3:ObjectRenamed:Rename", "s3:ObjectRemoved:Delete", "s3:ObjectCreated:Copy"
_ALIASES = {"s3:OzoneBucketCreated:Put": "s3:BucketCreated:*", "s3:OzoneBucketRemoved:Delete": "s3:BucketRemoved:*"}
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def normalize(record: Record) -> Record | tuple[Record, ...]:
    """Return the record under the object's own key; two records for a rename. Raises `BadRecord` for a volume's."""
    prefix_name(record, _ALIASES)
    name, thing = record.get("eventName"), object_of(record)
    key, bucket = thing.get("key"), find(record, "s3", "bucket", "name")
    if isinstance(name, str) and name.startswith(_VOLUME):
        raise BadRecord("eventName", f"is {excerpt(name)}: Apache Ozone reports a volume, which is in no bucket")
    if isinstance(key, str):
        is_folder = find(record, "ozoneEventData", "isDirectory") is True and not key.endswith("/")
        thing["key"] = minio_json.encode_key(_without_volume(key, bucket) + ("/" if is_folder else ""))
    if isinstance(etag := thing.get("eTag"), str) and _UUID.fullmatch(etag):
        del thing["eTag"]
    former = find(record, "ozoneEventData", "renameFromKey")
    if name != _RENAMED or not isinstance(former, str):
        return record
    old_key = minio_json.encode_key(_without_volume(former, bucket))
    removed = {**record, "eventName": _REMOVED, "s3": {**record["s3"], "object": {"key": old_key}}}
    record["eventName"] = _COPIED
    return removed, record


def order(record: Mapping[str, Any]) -> str:
    """Return the time of the event, and the index of its transaction; "" without a time."""
    time, index = nanoseconds(record.get("eventTime")), number(record, "ozoneEventData", "trxLogIndex")
    if time is None:
        return ""
    return from_time(time, f"{index:016X}" if index is not None and 0 <= index < 1 << 63 else "")


def _without_volume(key: str, bucket: object) -> str:
    """Return the key without `volume/bucket/` before it; as it is if it does not begin so."""
    parts = key.split("/", 2)
    if len(parts) < 2 or parts[1] != bucket:
        return key
    return parts[2] if len(parts) > 2 else ""


OZONE = Frontend("ozone", normalize, order)
