"""Senders of S3's form whose `eventSource` nobody knows: what their keys mean can be a guess.

S3 encodes keys, and some senders do not. A key without `+` and `%` is the same either way, and one that cannot be
decoded is raw. Any other key is decoded, and the event's origin says that this is a guess.
"""

from collections.abc import Mapping
from typing import Any

from app.events import minio_json
from app.events.frontends import aws
from app.events.frontends.frontend import Frontend, Record, normalize_raw, object_of, prefix_name

GUESSED = "unknown-encoding"  # the name of the sender in the origin of an event whose key is a guess


def normalize(record: Record) -> Record:
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


RAW = Frontend("raw", normalize_raw, aws.order)  # for a person to name: nobody is recognised as it
UNKNOWN = Frontend("unknown", normalize, aws.order)
UNKNOWN_ENCODING = Frontend(GUESSED, normalize, aws.order)
