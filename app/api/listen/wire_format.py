"""The bytes sent to a listener: the response head, and lines of JSON, each in an HTTP chunk if chunking is used."""

from typing import NamedTuple

import orjson

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


def head(*, chunked: bool, number: str) -> bytes:
    """Write the status line and headers of a stream."""
    lines = [
        "HTTP/1.1 200 OK",
        "Content-Type: text/event-stream",
        "Cache-Control: no-cache",
        "X-Accel-Buffering: no",
        f"x-amz-request-id: {number}",
        "Connection: close",
    ]
    if chunked:
        lines.append("Transfer-Encoding: chunked")
    return "\r\n".join([*lines, "", ""]).encode()


def frame(content: bytes, *, chunked: bool) -> bytes:
    """Write the content as an HTTP chunk if `chunked`, else unchanged."""
    return b"%x\r\n%b\r\n" % (len(content), content) if chunked else content
