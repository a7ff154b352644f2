"""What goes over the wire to a listener: the head, and lines of JSON, each in a chunk where HTTP has chunks."""

from typing import NamedTuple

import orjson

from app.events import minio_json

PING = b'{"Records":null}\n'
SPACE = b" "  # what MinIO sent before there was a ping; clients skip blanks before a line


class Line(NamedTuple):
    """One event for listeners."""

    seq: int
    event_id: str
    content: bytes


def event_line(seq: int, event_id: str, key: str, record: str) -> Line:
    """The event as MinIO writes it here, its key not encoded (§1.6), and beside it the id to resume after."""
    found = minio_json.load(record.encode())
    thing = found["s3"].get("object")
    if isinstance(thing, dict) and "key" in thing:
        thing["key"] = key
    return Line(seq, event_id, minio_json.text({"Records": [found], "EventId": event_id}).encode() + b"\n")


def marker(missed: int, after: str) -> bytes:
    """Tells a reader that was too slow how many events it missed at most, and after which one to ask for them."""
    told = {"atMost": missed} | ({"resumeAfter": after} if after else {})
    return orjson.dumps({"Records": None, "Dropped": told}) + b"\n"


def head(*, chunked: bool, number: str) -> bytes:
    """Status line and headers of the stream."""
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


def framed(content: bytes, *, chunked: bool) -> bytes:
    """The content as it is sent."""
    return b"%x\r\n%b\r\n" % (len(content), content) if chunked else content
