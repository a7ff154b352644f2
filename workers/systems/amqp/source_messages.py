"""The messages of AMQP: what a source takes over of them, and those that the library does not read."""

import hashlib
import struct
from collections.abc import Callable
from typing import Any

from amqp import serialization, spec
from amqp.exceptions import AMQPError

from app.events.minio_json import YEAR_10000
from app.events.parsing import ENCODING_HEADER, Message
from workers.sources.base import AnyText, parses_position

STREAM = "stream"  # the share of a stream, which has one order
OFFSET = "x-stream-offset"  # the header of a stream's message, and the argument with which only a stream is consumed


def position_of(message: Any, offset: int) -> str:
    """Return the position of a stream's message: its offset, and a digest, since another stream may have the offset."""
    return f"{offset}:{hashlib.blake2b(message.body or b'', digest_size=8).hexdigest()}"


@parses_position
def offset_in(position: str) -> int:
    """Return the offset of a position; -1 if there is none."""
    return int(position.partition(":")[0]) if position else -1


def read_arrived(arrived: Any, offset: int | None) -> Message:
    """Return a message that has arrived; `offset` is that of a stream's, whose position the outbox keeps."""
    properties = arrived.properties
    headers = {
        _plain(name).lower(): _plain(value)
        for name, value in properties.get("application_headers", {}).items()
        if isinstance(name, str) and isinstance(value, str)
    }
    if "content_type" in properties:
        headers["content-type"] = _plain(properties["content_type"])
    if "content_encoding" in properties:
        headers[ENCODING_HEADER] = _plain(properties["content_encoding"])
    sent_at = properties.get("timestamp", 0) * 1000
    return Message(
        body=arrived.body or b"",  # an empty one is a text
        share="" if offset is None else STREAM,
        position="" if offset is None else position_of(arrived, offset),
        tag=arrived.delivery_tag,
        headers=headers,
        sent_at=sent_at if sent_at < YEAR_10000 else 0,
    )


def _plain(text: str) -> str:
    """Return a text that can be stored: the library reads surrogates, which no UTF-8 has, and no database takes."""
    return text.encode(errors="replace").decode()


def dispatch(strictly: Callable[..., None], method: object, payload: bytes, content: object) -> None:
    """Process a frame. The library refuses a message whose routing key is no UTF-8, and with it the queue."""
    try:
        strictly(method, payload, content)
    except UnicodeDecodeError:
        strictly(method, AnyText(payload), content)


def _read_properties(buffer: bytes, offset: int) -> tuple[dict[str, Any], int]:
    """Read a message's properties, or none. The library refuses some that a server passes on, and with them the queue.

    Such as a text that is not UTF-8, a time that the calendar does not have, or tables in each other a thousand deep.
    """
    try:
        properties, offset = _read_strictly(buffer, offset)
    except (AMQPError, ArithmeticError, ValueError, LookupError, OSError, RecursionError, struct.error):
        return {}, offset
    return properties, offset


_CLASSES: dict[int, Any] = serialization.PROPERTY_CLASSES
_read_strictly = _CLASSES[spec.Basic.CLASS_ID]
_CLASSES[spec.Basic.CLASS_ID] = _read_properties
