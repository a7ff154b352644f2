"""Read what a SeaweedFS filer writes to Kafka: Protocol Buffers of `filer_pb.EventNotification`, its path as the key.

Only the fields that make an event are read, by their numbers in `weed/pb/filer.proto`. The result is the body that the
filer's webhook posts of the same change, so there is one form for both.
"""

import base64
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from app.events.errors import BadEvents
from app.events.frontends.seaweedfs import change_of

_BEGINNINGS = (b"\x0a", b"\x12")  # of an old or a new entry
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_INTEGER, _FLAG, _TEXT, _BASE64 = "integer", "flag", "text", "base64"
_MAX_VARINT_BYTES = 10
_MAX_FIELDS = 500_000  # of all entries and chunks; a filer joins chunks from 10,000 on, and each has a dozen

_CHUNK = {2: ("offset", _INTEGER), 3: ("size", _INTEGER), 4: ("modified_ts_ns", _INTEGER), 5: ("e_tag", _TEXT)}
_ATTRIBUTES = {
    1: ("file_size", _INTEGER), 2: ("mtime", _INTEGER), 7: ("mime", _TEXT), 14: ("md5", _BASE64),
    19: ("mtime_ns", _INTEGER),
}  # fmt: skip
_EXTENDED = {1: ("key", _TEXT), 2: ("value", _BASE64)}
_ENTRY: Mapping[int, tuple[str, Any]] = {
    1: ("name", _TEXT), 2: ("is_directory", _FLAG), 3: ("chunks", [_CHUNK]), 4: ("attributes", _ATTRIBUTES),
    5: ("extended", [_EXTENDED]), 6: ("commit_ts_ns", _INTEGER), 9: ("content", _BASE64),
}  # fmt: skip
_NOTIFICATION = {1: ("old_entry", _ENTRY), 2: ("new_entry", _ENTRY), 4: ("new_parent_path", _TEXT)}


def is_filer_message(path: str, body: bytes) -> bool:
    """Return whether a message with this key is one: no JSON begins so, and no other frontend's key with a slash."""
    return path.startswith("/") and body[:1] in _BEGINNINGS


def is_filer_change(body: bytes) -> bool:
    """Return whether a body is one by its content, whatever its key was."""
    if body[:1] not in _BEGINNINGS:
        return False
    try:
        return not {"old_entry", "new_entry"}.isdisjoint(_read(body, _NOTIFICATION, iter(range(_MAX_FIELDS))))
    except ValueError:
        return False


def webhook_body(path: str, body: bytes) -> bytes:
    """Return the body of the webhook for this message. Raises `BadEvents` for what is no such message."""
    try:
        message = _read(body, _NOTIFICATION, iter(range(_MAX_FIELDS)))
    except ValueError as error:
        raise BadEvents(f"The body is no message of a SeaweedFS filer: {error}.") from None
    for name in ("old_entry", "new_entry"):
        if name in message:
            entry = message[name]
            entry["extended"] = {pair.get("key", ""): pair.get("value", "") for pair in entry.get("extended", [])}
    kind, _ = change_of(path, message)
    return orjson.dumps({"event_type": kind or "delete", "key": path, "message": message})


def _read(data: bytes, fields: Mapping[int, tuple[str, Any]], turns: Iterator[int]) -> dict[str, Any]:
    """Return the known fields of a message; those in a list may be there any number of times.

    Every field takes one of the `turns`. Raises `ValueError`, also if there are too few.
    """
    read: dict[str, Any] = {}
    for number, value in _fields(data, turns):
        name, kind = fields.get(number, ("", None))
        if kind is None:
            continue
        if isinstance(kind, list):
            read.setdefault(name, []).append(_value(value, kind[0], turns))
        else:
            read[name] = _value(value, kind, turns)
    return read


def _value(value: int | bytes, kind: Any, turns: Iterator[int]) -> Any:
    if kind in (_INTEGER, _FLAG):
        if not isinstance(value, int):
            raise ValueError("a field that should be a number is none")
        return bool(value) if kind == _FLAG else value - (1 << 64 if value >> 63 else 0)
    if not isinstance(value, bytes):
        raise ValueError("a field that should be bytes is a number")  # noqa: TRY004 - of the message, not of the program
    if isinstance(kind, dict):
        return _read(value, kind, turns)
    return value.decode() if kind == _TEXT else base64.b64encode(value).decode()


def _fields(data: bytes, turns: Iterator[int]) -> Iterator[tuple[int, int | bytes]]:
    offset = 0
    while offset < len(data):
        if next(turns, None) is None:
            raise ValueError(f"it has more than {_MAX_FIELDS:,} fields")
        tag, offset = _varint(data, offset)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, offset = _varint(data, offset)
            yield number, value
            continue
        size = {_FIXED64: 8, _FIXED32: 4}.get(wire, 0)
        if wire == _BYTES:
            size, offset = _varint(data, offset)
        elif not size:
            raise ValueError(f"a field has the wire type {wire}")
        if offset + size > len(data):
            raise ValueError("it ends within a field")
        yield number, data[offset : offset + size]
        offset += size


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(data[offset : offset + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value & (2**64 - 1), offset + index + 1
    raise ValueError("a number has no end")
