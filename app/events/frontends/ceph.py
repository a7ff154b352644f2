"""Ceph RGW, by HTTP push or CloudEvents in binary mode (§12.3).

Keys are raw, names come without `s3:`. Before Octopus its source was `aws:s3`, and its names began with `s3:`. A
sequencer is a memory dump of the time of the event: seconds, then nanoseconds, each four bytes in the byte order of the
host, which is little-endian nearly everywhere. So its text orders nothing. `eventId` begins with the same time in
microseconds, and decides which byte order it is.
"""

import re
import struct
from collections.abc import Mapping
from typing import Any

from app.events.frontends.frontend import Frontend, Record, normalize_raw, object_of
from app.events.frontends.json_path import find
from app.events.order import from_time, nanoseconds, sequencer_of

SOURCE = "ceph:s3"
# A version that expires while it is the newest gets a delete marker on top; the event names the version all the same,
# and has the name of the removal of an old one. When old versions expire there are no older ones. So in both cases the
# version and all that is older are gone or hidden, and newer ones are not.
EXPIRED = "s3:LifecycleExpiration:Delete"
OF_CEPH = f'"eventSource":"{SOURCE}"'  # in the JSON of its records
_DUMP = re.compile("[0-9A-Fa-f]{16}")
_EVENT_ID = re.compile(r"([0-9]{1,11})\.([0-9]{1,9})(?:\.|\Z)")
_BYTE_ORDERS = ("<II", ">II")
_SECOND = 10**9
_NEAR = 86_400 * _SECOND  # a dump in the wrong byte order is years away


def matches(record: Mapping[str, Any]) -> bool:
    """Return whether a record whose source is `aws:s3` comes from an old RGW: only its records have these members."""
    return "eventId" in record and find(record, "s3", "bucket", "id") is not None


def normalize(record: Record) -> Record:
    """Prefix the name, encode the key, and copy `metadata` to `userMetadata`."""
    normalize_raw(record)
    thing = object_of(record)
    named = _pairs(thing.get("metadata"))
    if named and "userMetadata" not in thing:
        thing["userMetadata"] = dict(sorted(named.items()))
    return record


def order(record: Mapping[str, Any]) -> str:
    """Return the time in the sequencer; without a sound one the time in `eventId`, or else `eventTime`."""
    reference = _event_id_time(record.get("eventId"))
    if reference is None:
        reference = nanoseconds(record.get("eventTime"))
    sequencer = sequencer_of(record)
    if _DUMP.fullmatch(sequencer):
        for byte_order in _BYTE_ORDERS:
            seconds, rest = struct.unpack(byte_order, bytes.fromhex(sequencer))
            time = seconds * _SECOND + rest
            if rest < _SECOND and (reference is None or abs(time - reference) < _NEAR):
                return from_time(time)
    return "" if reference is None else from_time(reference)


def _event_id_time(event_id: object) -> int | None:
    parts = _EVENT_ID.match(event_id) if isinstance(event_id, str) else None
    return int(parts[1]) * _SECOND + int(parts[2].ljust(9, "0")) if parts else None


def _pairs(entries: object) -> dict[str, str]:
    """Return `[{"key": …, "val": …}]` as a map, without entries of another shape (the original record keeps them)."""
    if not isinstance(entries, list):
        return {}
    pairs = [(entry.get("key"), entry.get("val")) for entry in entries if isinstance(entry, dict)]
    return {name: value for name, value in pairs if isinstance(name, str) and isinstance(value, str)}


CEPH = Frontend("ceph", normalize, order)
