"""Tigris, by the webhook of a bucket's object notifications.

Keys are raw, and a bucket has no versions. An event's order is its time, in milliseconds.
"""

from collections.abc import Mapping
from typing import Any

from app.events.frontends.frontend import Frontend, Record, made_object, made_record
from app.events.frontends.json_path import number, optional_text, text
from app.events.order import from_time, nanoseconds

SOURCE = "tigris:s3"
_CREATED, _DELETED = "OBJECT_CREATED_", "OBJECT_DELETED"


def matches(value: Mapping[str, Any]) -> bool:
    """Return whether the object is an event of Tigris."""
    is_its = optional_text(value, "eventSource") == "tigris" or optional_text(value, "eventName").startswith("OBJECT_")
    return is_its and isinstance(value.get("object"), dict)


def record(event: Record) -> Record:
    """Return the event's record. Raises `BadRecord`."""
    kind, time = text(event, "eventName"), nanoseconds(event.get("eventTime"))
    if kind.startswith(_CREATED):
        name = f"s3:ObjectCreated:{_joined(kind.removeprefix(_CREATED))}"
    else:
        name = "s3:ObjectRemoved:Delete" if kind == _DELETED else f"s3:{_joined(kind)}"
    thing = made_object(
        text(event, "object", "key"),
        size=number(event, "object", "size"),
        eTag=optional_text(event, "object", "eTag"),
        sequencer="" if time is None else from_time(time),
    )
    milliseconds = None if time is None else time // 10**6
    return made_record(SOURCE, name, text(event, "bucket"), thing, milliseconds, event)


def _joined(words: str) -> str:
    return "".join(word.capitalize() for word in words.split("_"))


TIGRIS = Frontend("tigris", record)
