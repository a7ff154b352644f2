"""AWS S3, and senders of its form that are not recognised otherwise (§13).

Keys are form-encoded, names come without `s3:`. A sequencer is opaque. Those of S3 have begun with five bytes of
seconds since 1970, so they are converted to nanoseconds, which keeps their order among each other whatever they mean,
and is the order of time towards other frontends and repairs.
"""

import re
from collections.abc import Mapping
from typing import Any

from app.events import minio_json
from app.events.errors import BadRecord, excerpt
from app.events.frontends.frontend import Frontend, Record, object_of, prefix_name
from app.events.frontends.json_path import find
from app.events.order import comparable, from_time, sequencer_of

SOURCE = "aws:s3"
_SECONDS = re.compile("00([4-9A-F][0-9A-F]{7})([0-9A-F]{8})([0-9A-F]*)")
_FORM_DIGITS = 18
_CONSTANT, _CONSTANT_OWNER = "0055AED6DCD90281E5", "A3NL1KOZZKExample"  # with every event of LocalStack


def normalize(record: Record) -> Record:
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


def order(record: Mapping[str, Any]) -> str:
    """Return the sequencer as a time where it has S3's form, else as it is; "" for the one that LocalStack sends."""
    value = comparable(sequencer_of(record))
    if value == _CONSTANT and find(record, "s3", "bucket", "ownerIdentity", "principalId") == _CONSTANT_OWNER:
        return ""
    parts = _SECONDS.fullmatch(value.ljust(_FORM_DIGITS, "0"))
    if parts is None:
        return value
    seconds, fraction = int(parts[1], 16), int(parts[2], 16)
    return from_time(seconds * 10**9 + (fraction * 10**9 >> 32), parts[2] + parts[3])


AWS = Frontend("aws", normalize, order)
