"""The protocol of listeners (reference §8): their query parameters, and the bytes that they are sent.

There are two formats: MinIO's lines of JSON, and server-sent events, which browsers understand (`EventSource`). What is
sent is a response head and what the format makes of events, in HTTP chunks if they are used.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import orjson

from app.api.s3.errors import S3Error
from app.api.wsgi_layers import PROTECTION
from app.config.arn import TargetId
from app.events import minio_json
from app.events.model import EVENT_ID
from app.events.names import UnknownEventName, expand
from app.rules.model import EVERY_BUCKET, Rule
from app.rules.notification_xml import NO_EVENT

RESUME = "resume-after"
MAX_FILTER_BYTES = 1024
_MAX_PING_SECONDS = 24 * 3600
NO_TARGET = TargetId("listener", "_")  # a rule needs a target; only its filter is used


PING = b'{"Records":null}\n'
SPACE = b" "  # sent by MinIO before there was a ping; clients skip spaces before a line
LAST_CHUNK = b"0\r\n\r\n"


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


@dataclass(frozen=True, slots=True)
class StreamQuery:
    """The requested events, the ping interval (seconds; 0: as MinIO before 2023), and the event to resume after.

    With `target_id` (a row's id) only events for that target. With `resume_bucket` that event has to be of this bucket.
    With `seal` the ids of events that the listener does not get are sealed with it, to resume after them without
    knowing them. `is_allowed` returns whether the listener may still listen; it is called every few seconds, in the
    thread that reads the log. `holder` is the limited token that has only a share of the streams; "" for no limit.
    """

    rule: Rule
    ping: int = 0
    resume_after: str = ""
    wire_format: JsonLines = JSON_LINES
    target_id: int | None = None
    resume_bucket: str = ""
    seal: Callable[[str], str] | None = None
    is_allowed: Callable[[], bool] | None = None
    holder: str = ""


def parse_query(bucket: str, query: Sequence[tuple[str, str]]) -> StreamQuery:
    """Parse the query; no bucket means every bucket. Raises `S3Error`."""
    names = tuple(dict.fromkeys(value for name, value in query if name == "events"))
    for name in names:
        try:
            expand(name)
        except UnknownEventName:
            raise S3Error("InvalidArgument", f"{NO_EVENT}: {name[:80]}") from None
    rule = Rule(
        bucket=bucket or EVERY_BUCKET,
        events=names,
        target=NO_TARGET,
        prefix=_filter("prefix", query),
        suffix=_filter("suffix", query),
    )
    return StreamQuery(rule, _ping(query), _resume(query))


def _resume(query: Sequence[tuple[str, str]]) -> str:
    value = _single_value(RESUME, query)
    if value and not EVENT_ID.fullmatch(value):
        raise S3Error("InvalidArgument", f"{RESUME} must be the EventId of a line: 32 hexadecimal digits.")
    return value


def _filter(name: str, query: Sequence[tuple[str, str]]) -> str:
    value = _single_value(name, query)
    if any(segment in (".", "..") for segment in value.split("/")):
        raise S3Error("XMinioInvalidResourceName")
    if len(value.encode()) > MAX_FILTER_BYTES or "\\" in value:
        message = (
            f"Size of filter rule value cannot exceed {MAX_FILTER_BYTES} bytes in UTF-8 representation, "
            "and it cannot contain a \\"
        )
        raise S3Error("InvalidArgument", message)
    return value


def _single_value(name: str, query: Sequence[tuple[str, str]]) -> str:
    values = [value for key, value in query if key == name]
    if len(values) > 1:
        raise S3Error("InvalidArgument", f"Cannot specify more than one {name}.")
    return values[0] if values else ""


def _ping(query: Sequence[tuple[str, str]]) -> int:
    value = _single_value("ping", query)
    if not value:
        return 0
    # MinIO's error code, although it is unusual (§8).
    if not (value.isascii() and value.isdigit() and len(value) < 6 and 1 <= int(value) <= _MAX_PING_SECONDS):
        message = f"ping must be a whole number of seconds from 1 to {_MAX_PING_SECONDS}."
        raise S3Error("AuthorizationQueryParametersError", message)
    return int(value)
