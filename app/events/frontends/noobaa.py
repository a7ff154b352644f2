"""NooBaa (OpenShift Data Foundation's Multicloud Object Gateway), with its database or on a file system.

Its source is `noobaa:s3` or its host's name and `:s3`, so of an unknown source it is recognised by the version of its
records and the form of its sequencers. Keys are raw. With the database a sequencer is an integer that does not order
the events of a key; on a file system, and for a lifecycle, it is the event's time in milliseconds, in lower-case
hexadecimal.
"""

import re
from collections.abc import Mapping
from typing import Any

from app.events.frontends.frontend import Frontend, normalize_raw, object_of
from app.events.minio_json import Encoded
from app.events.order import from_time, sequencer_of

SOURCE = "noobaa:s3"
_VERSION = "2.3"
_MILLISECONDS = re.compile("[0-9a-f]{11}")  # from 2004 to 2527
_OLD_TESTS = (b'"test notification"', b"test notification")


def is_old_test(body: Encoded) -> bool:
    """Return whether a body is what NooBaa up to 5.18 tests a connection with: the text in JSON, or by reports bare."""
    return body.startswith(_OLD_TESTS) and body.strip() in _OLD_TESTS


def matches(record: Mapping[str, Any]) -> bool:
    """Return whether a record comes from NooBaa, if its source is that of no other sender."""
    source, sequencer = record.get("eventSource"), object_of(record).get("sequencer")
    if not isinstance(source, str) or not source.endswith(":s3") or record.get("eventVersion") != _VERSION:
        return False
    return not isinstance(sequencer, str) or _MILLISECONDS.fullmatch(sequencer) is not None


def order(record: Mapping[str, Any]) -> str:
    """Return the time in the sequencer; "" for the database's integers. Raises `BadRecord` for what is no sequencer."""
    sequencer = sequencer_of(record)
    return from_time(int(sequencer, 16) * 1_000_000) if _MILLISECONDS.fullmatch(sequencer) else ""


NOOBAA = Frontend("noobaa", normalize_raw, order)
