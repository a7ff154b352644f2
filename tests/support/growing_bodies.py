"""Bodies that are small when they are posted and large once they are unpacked, parsed or written."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from functools import cache

import orjson

from app.events.limits import MAX_EVENT_BYTES
from tests.support.builders import event


def growing(letter: str, size: int) -> bytes:
    """A body of two events, one of which holds a letter so often."""
    record = orjson.loads(event("long").record) | {"pad": letter * size}
    return orjson.dumps({"Records": [orjson.loads(event("beside").record), record]})


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
