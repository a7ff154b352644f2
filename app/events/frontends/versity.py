"""Versity S3 Gateway: it calls itself `aws:s3`; only the `configurationId` of its records distinguishes it from AWS.

Keys are raw, ETags are quoted, and each object of a DeleteObjects is `ObjectRemoved:DeleteObjects`. A sequencer is a
counter in hexadecimal that begins again when the gateway starts, so an event's order is its second and then its
counter. No record has a version id; those of copies and multipart uploads have size 0.
"""

import re
from collections.abc import Mapping
from typing import Any

from app.events.frontends.frontend import Frontend, Record, normalize_raw, prefix_name
from app.events.order import from_time, nanoseconds, sequencer_of

_CONFIGURATIONS = frozenset(f"{kind}-global" for kind in ("webhook", "kafka", "nats", "rabbitmq"))
_ALIASES = {"s3:ObjectRemoved:DeleteObjects": "s3:ObjectRemoved:Delete"}
_COUNTER = re.compile("[0-9A-Fa-f]{1,16}")


def matches(record: Mapping[str, Any]) -> bool:
    """Return whether a record whose source is `aws:s3` comes from the gateway."""
    s3 = record.get("s3")
    configuration = s3.get("configurationId") if isinstance(s3, dict) else None
    return isinstance(configuration, str) and configuration in _CONFIGURATIONS


def normalize(record: Record) -> Record:
    """Encode the key, and name `DeleteObjects` as other senders do."""
    prefix_name(record, _ALIASES)
    return normalize_raw(record)


def order(record: Mapping[str, Any]) -> str:
    """Return the record's time, and then its counter; "" without a time, because the counter alone orders nothing."""
    time, counter = nanoseconds(record.get("eventTime")), sequencer_of(record)
    if time is None:
        return ""
    return from_time(time, counter.upper().rjust(16, "0") if _COUNTER.fullmatch(counter) else "")


VERSITY = Frontend("versity", normalize, order)
