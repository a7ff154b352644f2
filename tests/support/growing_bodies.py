"""Bodies that are small when they are posted and large once they are unpacked, parsed or written."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from functools import cache
from typing import Any

import orjson

from app.events.limits import MAX_EVENT_BYTES
from tests.support.builders import event


def growing(letter: str, size: int) -> bytes:
    """A body of two events, one of which holds a letter so often."""
    record = orjson.loads(event("long").record) | {"pad": letter * size}
    return orjson.dumps({"Records": [orjson.loads(event("beside").record), record]})


@cache
def messages_that_grow() -> Sequence[tuple[bytes, str]]:
    """Messages of less than 1 MB that have to be rejected, and what the reason of each says."""
    return (
        (gzip.compress(growing("<", 60_000_000)), "makes an event of 3600002"),
        (gzip.compress(growing("~", 9_000_000).replace(b"~", b"\\u003c")), "makes an event of 540002"),
        (gzip.compress(b"[" + b" " * 100_000_000), "unpacks to more than"),
        (gzip.compress(b"[", 1) * 10_001, "10,000 members"),
        (gzip.compress(b'{"Records":[' + b"[]," * 5_000_000 + b"[]]}"), "640000 JSON objects and arrays"),
        (gzip.compress(b'{"Records":[{' + b'"key":0,' * 5_000_000 + b'"key":0}]}'), "1280000 JSON values"),
        (gzip.compress(_records([{"more": {f"{number:06}": "<" * 20 for number in range(200_000)}}])), "an event of"),
        (gzip.compress(_records([{"pad": "x" * 6500}] * 10_000)), "unpacks to more than"),
        (gzip.compress(_records([{"pad": "<" * 2000}] * 10_000)), "events of the body have more than"),
        (b"[" * 200_000, "depth limit"),
    )


def texts_that_grow() -> Sequence[tuple[bytes, str]]:
    """The same for a queue whose messages are texts of at most 256 kB, of which few grow enough to be rejected."""
    return (
        (b"[" * 200_000, "depth limit"),
        (_records([{"more": 7}]).replace(b":7", b":[" + b"[]," * 80_000 + b"7"), "JSON"),
    )


def _records(members: Sequence[dict[str, Any]]) -> bytes:
    return orjson.dumps({"Records": [orjson.loads(event("grows").record) | more for more in members]})


@cache
def bodies_that_grow() -> Sequence[tuple[bytes, dict[str, str]]]:
    """Contents and headers of posts that have to be refused: one as it is, and two by gzip, the last of escapes."""
    letters = MAX_EVENT_BYTES // 5
    escaped = growing("~", letters).replace(b"~", b"\\u003c")
    packed = {"content-encoding": "gzip"}
    return (
        (growing("<", letters), {}),
        (gzip.compress(growing("<", 60_000_000), 1), packed),
        (gzip.compress(escaped, 1), packed),
    )
