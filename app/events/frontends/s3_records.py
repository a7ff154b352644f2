"""Senders of records of S3's form that have rules of their own: for their keys, their names, or the order of events."""

import re
import struct
from collections.abc import Mapping
from typing import Any

from app.events import minio_json
from app.events.errors import BadRecord, excerpt
from app.events.frontends.frontend import Frontend, Record, find, normalize_raw, number, object_of, prefix_name
from app.events.minio_json import Encoded
from app.events.order import comparable, from_time, nanoseconds, sequencer_of

# AWS S3, and senders of its form that are not recognised otherwise (§13). Keys are form-encoded, names come without
# `s3:`. A sequencer is opaque. Those of S3 have begun with five bytes of seconds since 1970, so they are converted to
# nanoseconds, which keeps their order among each other whatever they mean, and is the order of time towards other
# frontends and repairs.
AWS_SOURCE = "aws:s3"
_SECONDS = re.compile("00([4-9A-F][0-9A-F]{7})([0-9A-F]{8})([0-9A-F]*)")
_FORM_DIGITS = 18
_LOCALSTACK, _LOCALSTACK_OWNER = "0055AED6DCD90281E5", "A3NL1KOZZKExample"  # with every event of LocalStack


def normalize_encoded(record: Record) -> Record:
    """Prefix the name with `s3:`, and encode the key's `/` as MinIO does; change nothing else. Raises `BadRecord`."""
    prefix_name(record)
    thing = object_of(record)
    key = thing.get("key")
    if isinstance(key, str):
        try:
            thing["key"] = minio_json.encode_key(minio_json.decode_key(key))
        except minio_json.BadKey as problem:
            raise BadRecord("s3.object.key", f"{excerpt(key)} {problem}") from None
    return record


def order_of_aws(record: Mapping[str, Any]) -> str:
    """Return the sequencer as a time where it has S3's form, else as it is; "" for the one that LocalStack sends."""
    value = comparable(sequencer_of(record))
    if value == _LOCALSTACK and find(record, "s3", "bucket", "ownerIdentity", "principalId") == _LOCALSTACK_OWNER:
        return ""
    parts = _SECONDS.fullmatch(value.ljust(_FORM_DIGITS, "0"))
    if parts is None:
        return value
    seconds, fraction = int(parts[1], 16), int(parts[2], 16)
    return from_time(seconds * 10**9 + (fraction * 10**9 >> 32), parts[2] + parts[3])


AWS = Frontend("aws", normalize_encoded, order_of_aws)


# Ceph RGW, by HTTP push or CloudEvents in binary mode (§12.3). Keys are raw, names come without `s3:`. Before Octopus
# its source was `aws:s3`, and its names began with `s3:`. A sequencer is a memory dump of the time of the event:
# seconds, then nanoseconds, each four bytes in the byte order of the host, which is little-endian nearly everywhere.
# So its text orders nothing. `eventId` begins with the same time in microseconds, and decides which byte order it is.
CEPH_SOURCE = "ceph:s3"
# A version that expires while it is the newest gets a delete marker on top; the event names the version all the same,
# and has the name of the removal of an old one. When old versions expire there are no older ones. So in both cases the
# version and all that is older are gone or hidden, and newer ones are not.
EXPIRED = "s3:LifecycleExpiration:Delete"
OF_CEPH = f'"eventSource":"{CEPH_SOURCE}"'  # in the JSON of its records
_DUMP = re.compile("[0-9A-Fa-f]{16}")
_EVENT_ID = re.compile(r"([0-9]{1,11})\.([0-9]{1,9})(?:\.|\Z)")
_BYTE_ORDERS = ("<II", ">II")
_SECOND_NS = 10**9
_NEAR = 86_400 * _SECOND_NS  # a dump in the wrong byte order is years away


def is_ceph(record: Mapping[str, Any]) -> bool:
    """Return whether a record whose source is `aws:s3` comes from an old RGW: only its records have these members."""
    return "eventId" in record and find(record, "s3", "bucket", "id") is not None


def _normalize_ceph(record: Record) -> Record:
    """Prefix the name, encode the key, and copy `metadata` to `userMetadata`."""
    normalize_raw(record)
    thing = object_of(record)
    named = _metadata_of(thing.get("metadata"))
    if named and "userMetadata" not in thing:
        thing["userMetadata"] = dict(sorted(named.items()))
    return record


def _order_of_ceph(record: Mapping[str, Any]) -> str:
    """Return the time in the sequencer; without a sound one the time in `eventId`, or else `eventTime`."""
    reference = _event_id_time(record.get("eventId"))
    if reference is None:
        reference = nanoseconds(record.get("eventTime"))
    sequencer = sequencer_of(record)
    if _DUMP.fullmatch(sequencer):
        for byte_order in _BYTE_ORDERS:
            seconds, rest = struct.unpack(byte_order, bytes.fromhex(sequencer))
            time = seconds * _SECOND_NS + rest
            if rest < _SECOND_NS and (reference is None or abs(time - reference) < _NEAR):
                return from_time(time)
    return "" if reference is None else from_time(reference)


def _event_id_time(event_id: object) -> int | None:
    parts = _EVENT_ID.match(event_id) if isinstance(event_id, str) else None
    return int(parts[1]) * _SECOND_NS + int(parts[2].ljust(9, "0")) if parts else None


def _metadata_of(entries: object) -> dict[str, str]:
    """Return `[{"key": …, "val": …}]` as a map, without entries of another shape (the original record keeps them)."""
    if not isinstance(entries, list):
        return {}
    pairs = [(entry.get("key"), entry.get("val")) for entry in entries if isinstance(entry, dict)]
    return {name: value for name, value in pairs if isinstance(name, str) and isinstance(value, str)}


CEPH = Frontend("ceph", _normalize_ceph, _order_of_ceph)


# Versity S3 Gateway: it calls itself `aws:s3`; only the `configurationId` of its records distinguishes it from AWS.
# Keys are raw, ETags are quoted, and each object of a DeleteObjects is `ObjectRemoved:DeleteObjects`. A sequencer is
# a counter in hexadecimal that begins again when the gateway starts, so an event's order is its second and then its
# counter. No record has a version id; those of copies and multipart uploads have size 0.
_CONFIGURATIONS = frozenset(f"{kind}-global" for kind in ("webhook", "kafka", "nats", "rabbitmq"))
_VERSITY_NAMES = {"s3:ObjectRemoved:DeleteObjects": "s3:ObjectRemoved:Delete"}
_COUNTER = re.compile("[0-9A-Fa-f]{1,16}")


def is_versity(record: Mapping[str, Any]) -> bool:
    """Return whether a record whose source is `aws:s3` comes from the gateway."""
    s3 = record.get("s3")
    configuration = s3.get("configurationId") if isinstance(s3, dict) else None
    return isinstance(configuration, str) and configuration in _CONFIGURATIONS


def _normalize_versity(record: Record) -> Record:
    """Encode the key, and name `DeleteObjects` as other senders do."""
    prefix_name(record, _VERSITY_NAMES)
    return normalize_raw(record)


def _order_of_versity(record: Mapping[str, Any]) -> str:
    """Return the record's time, and then its counter; "" without a time, because the counter alone orders nothing."""
    time, counter = nanoseconds(record.get("eventTime")), sequencer_of(record)
    if time is None:
        return ""
    return from_time(time, counter.upper().rjust(16, "0") if _COUNTER.fullmatch(counter) else "")


VERSITY = Frontend("versity", _normalize_versity, _order_of_versity)


# NooBaa (OpenShift Data Foundation's Multicloud Object Gateway), with its database or on a file system. Its source is
# `noobaa:s3` or its host's name and `:s3`, so of an unknown source it is recognised by the version of its records and
# the form of its sequencers. Keys are raw. With the database a sequencer is an integer that does not order the events
# of a key; on a file system, and for a lifecycle, it is the event's time in milliseconds, in lower-case hexadecimal.
NOOBAA_SOURCE = "noobaa:s3"
_NOOBAA_VERSION = "2.3"
_MILLISECONDS = re.compile("[0-9a-f]{11}")  # from 2004 to 2527
_OLD_TESTS = (b'"test notification"', b"test notification")


def is_old_noobaa_test(body: Encoded) -> bool:
    """Return whether a body is what NooBaa up to 5.18 tests a connection with: the text in JSON, or by reports bare."""
    return body.startswith(_OLD_TESTS) and body.strip() in _OLD_TESTS


def is_noobaa(record: Mapping[str, Any]) -> bool:
    """Return whether a record comes from NooBaa, if its source is that of no other sender."""
    source, sequencer = record.get("eventSource"), object_of(record).get("sequencer")
    if not isinstance(source, str) or not source.endswith(":s3") or record.get("eventVersion") != _NOOBAA_VERSION:
        return False
    return not isinstance(sequencer, str) or _MILLISECONDS.fullmatch(sequencer) is not None


def _order_of_noobaa(record: Mapping[str, Any]) -> str:
    """Return the time in the sequencer; "" for the database's integers. Raises `BadRecord` for what is no sequencer."""
    sequencer = sequencer_of(record)
    return from_time(int(sequencer, 16) * 1_000_000) if _MILLISECONDS.fullmatch(sequencer) else ""


NOOBAA = Frontend("noobaa", normalize_raw, _order_of_noobaa)


# Apache Ozone, whose manager writes records of S3's form to Kafka (`S3EventNotificationStrategy`). A key is raw and
# has its volume and bucket before it: `volume/bucket/key`. The ETag is a random UUID, which is left out. There is no
# sequencer: an event's order is its time, then the index of its transaction. A rename is one event, of which a
# removal and a copy are made; volumes have events too, which concern no bucket.
OZONE_SOURCE = "ozone:s3"
_VOLUME = "s3:OzoneVolume"
_RENAMED, _REMOVED, _COPIED = "s3:ObjectRenamed:Rename", "s3:ObjectRemoved:Delete", "s3:ObjectCreated:Copy"
_OZONE_NAMES = {"s3:OzoneBucketCreated:Put": "s3:BucketCreated:*", "s3:OzoneBucketRemoved:Delete": "s3:BucketRemoved:*"}
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def _normalize_ozone(record: Record) -> Record | tuple[Record, ...]:
    """Return the record under the object's own key; two records for a rename. Raises `BadRecord` for a volume's."""
    prefix_name(record, _OZONE_NAMES)
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


def _order_of_ozone(record: Mapping[str, Any]) -> str:
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


OZONE = Frontend("ozone", _normalize_ozone, _order_of_ozone)


# Senders of S3's form whose `eventSource` nobody knows: what their keys mean can be a guess. S3 encodes keys, and
# some senders do not. A key without `+` and `%` is the same either way, and one that cannot be decoded is raw. Any
# other key is decoded, and the event's origin says that this is a guess.
GUESSED = "unknown-encoding"  # the name of the sender in the origin of an event whose key is a guess


def _normalize_unknown(record: Record) -> Record:
    """Prefix the name with `s3:`, and encode the key as MinIO does; one that MinIO could have sent stays as it is."""
    is_minios = str(record.get("eventName")).startswith("s3:")
    prefix_name(record)
    thing = object_of(record)
    key = thing.get("key")
    if isinstance(key, str):
        decoded = _decoded(key)
        if decoded is None or not is_minios:
            thing["key"] = minio_json.encode_key(key if decoded is None else decoded)
    return record


def is_guess(record: Mapping[str, Any]) -> bool:
    """Return whether the key of such a record can be read in two ways."""
    key = object_of(record).get("key")
    return isinstance(key, str) and ("%" in key or "+" in key) and _decoded(key) is not None


def is_unknown(frontend: Frontend) -> bool:
    """Return whether nobody knows who sends the records of this frontend."""
    return frontend.name in (UNKNOWN.name, GUESSED)


def _decoded(key: str) -> str | None:
    try:
        return minio_json.decode_key(key)
    except minio_json.BadKey:
        return None


RAW = Frontend("raw", normalize_raw, order_of_aws)  # for a person to name: nobody is recognised as it
UNKNOWN = Frontend("unknown", _normalize_unknown, order_of_aws)
UNKNOWN_ENCODING = Frontend(GUESSED, _normalize_unknown, order_of_aws)
