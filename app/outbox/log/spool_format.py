"""Encode and decode spool files: a line with the number of events and a digest, then JSON."""

import hashlib
from collections.abc import Sequence
from typing import Any

import orjson

from app.events.model import Event

_FORMAT = "bucketwire-spooled-1"
_FIELDS = ("id", "name", "bucket", "key", "version", "sequencer", "time", "record")
_TEXTS = tuple(name for name in _FIELDS if name != "time")


class DamagedFile(ValueError):
    """A spool file does not have the content that was written to it."""


def encoded(events: Sequence[Event]) -> bytes:
    """Encode events as the content of a file: a line with their number and the digest of the rest, then JSON."""
    document: dict[str, Any] = {
        "fields": _FIELDS,
        "rows": [[getattr(event, name) for name in _FIELDS] for event in events],
    }
    if any(event.trace for event in events):
        # Outside the rows, where a version that does not know them ignores them: it may feed files of a later version.
        document["traces"] = [event.trace for event in events]
    if any(event.origin for event in events):
        document["origins"] = [event.origin for event in events]
    body = orjson.dumps(document)
    return f"{_FORMAT} {len(events)} {hashlib.sha256(body).hexdigest()}\n".encode() + body


def decoded(content: bytes) -> Sequence[Event]:
    """Decode the events of a file. Raises `DamagedFile`."""
    head, _, body = content.partition(b"\n")
    fields = head.decode(errors="replace").split(" ")
    if len(fields) != 3 or fields[0] != _FORMAT:
        raise DamagedFile(f"it does not begin with {_FORMAT}")
    if fields[2] != hashlib.sha256(body).hexdigest():
        raise DamagedFile("it is cut off or was changed: its digest does not fit")
    try:
        document = orjson.loads(body)
        events = [Event(**dict(zip(document["fields"], row, strict=True))) for row in document["rows"]]
        if "traces" in document:
            events = [event._replace(trace=trace) for event, trace in zip(events, document["traces"], strict=True)]
        if "origins" in document:
            events = [event._replace(origin=origin) for event, origin in zip(events, document["origins"], strict=True)]
        for event in events:
            _check_types(event)
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFile(f"another version of bucketwire wrote it: {error}") from None
    return events


def _check_types(event: Event) -> None:
    """Raise `TypeError` for wrong types, as in a file edited by hand: they must not fail during a commit."""
    if type(event.time) is not int:
        raise TypeError("time is no whole number")
    for name in (*_TEXTS, "trace", "origin"):
        if type(getattr(event, name)) is not str:
            raise TypeError(f"{name} is no text")
