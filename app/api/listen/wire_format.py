"""The bytes sent to a listener: the response head, and what a format makes of events, in HTTP chunks if they are used.

There are two formats: MinIO's lines of JSON, and server-sent events, which browsers understand (`EventSource`).
"""

from collections.abc import Sequence
from typing import NamedTuple

import orjson

from app.api.protection import PROTECTION
from app.events import minio_json

PING = b'{"Records":null}\n'
SPACE = b" "  # sent by MinIO before there was a ping; clients skip spaces before a line


class Line(NamedTuple):
    """One event as a line for listeners."""

    seq: int
    event_id: str
    content: bytes


def event_line(seq: int, event_id: str, key: str, record: str) -> Line:
    """Write an event as MinIO does for listeners, its key not encoded (§1.6), with the id to resume after."""
    parsed = minio_json.load(record.encode())
    thing = parsed["s3"].get("object")
    if isinstance(thing, dict) and "key" in thing:
        thing["key"] = key
    return Line(seq, event_id, minio_json.text({"Records": [parsed], "EventId": event_id}).encode() + b"\n")


def gap_marker(missed: int, after: str) -> bytes:
    """Write the line that reports to a slow reader how many events it missed at most, and which id to resume after."""
    dropped = {"atMost": missed} | ({"resumeAfter": after} if after else {})
    return orjson.dumps({"Records": None, "Dropped": dropped}) + b"\n"


class JsonLines:
    """MinIO's format. A stream lasts as long as its connection."""

    greeting = b""
    longest: float | None = None  # seconds that a stream lasts

    def around(self, line: Line) -> tuple[bytes, bytes]:  # noqa: ARG002 - for the other format
        """Return what is written before and after an event's line."""
        return b"", b""

    def gap(self, missed: int, after: str) -> bytes:
        """Write the marker of a gap."""
        return gap_marker(missed, after)

    def ping(self, interval: int, after: str) -> bytes:  # noqa: ARG002 - for the other format
        """Write a ping for a listener that asked for one at this interval, 0 if it did not; `after` as in `gap`."""
        return PING if interval else SPACE


class ServerSentEvents(JsonLines):
    """The format of `EventSource`: each event has its id, after which a browser resumes when it connects again.

    It has to do so after some minutes: a token that has been revoked opens no further stream.
    """

    greeting = b"retry: 1000\n\n"
    longest = 300.0

    def around(self, line: Line) -> tuple[bytes, bytes]:
        """Return the event's id, and the blank line that ends it."""
        return b"id: %b\ndata: " % line.event_id.encode(), b"\n"

    def gap(self, missed: int, after: str) -> bytes:
        """Write the marker of a gap as an event of its own type."""
        return b"event: gap\ndata: %b\n" % gap_marker(missed, after)

    def ping(self, interval: int, after: str) -> bytes:  # noqa: ARG002 - see the class above
        """Write a comment, and the id to resume after: a browser remembers it without getting an event.

        Otherwise a listener whose filter few events match would resume after one of long ago, and the whole log since
        then would be read for it.
        """
        return b": ping\nid: %b\n\n" % after.encode() if after else b": ping\n\n"


JSON_LINES, SERVER_SENT_EVENTS = JsonLines(), ServerSentEvents()
LAST_CHUNK = b"0\r\n\r\n"


def head(*, chunked: bool, number: str) -> bytes:
    """Write the status line and headers of a stream."""
    lines = [
        "HTTP/1.1 200 OK",
        "Content-Type: text/event-stream",
        "Cache-Control: no-cache",
        "X-Accel-Buffering: no",
        f"x-amz-request-id: {number}",
        *(f"{name}: {value}" for name, value in PROTECTION.items()),
        "Connection: close",
    ]
    if chunked:
        lines.append("Transfer-Encoding: chunked")
    return "\r\n".join([*lines, "", ""]).encode()


def frame(parts: Sequence[bytes], *, chunked: bool) -> Sequence[bytes]:
    """Return the parts as an HTTP chunk if `chunked`, else unchanged; none of them is copied."""
    return (b"%x\r\n" % sum(map(len, parts)), *parts, b"\r\n") if chunked else parts
