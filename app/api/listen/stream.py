"""One listener's connection in the event loop: it sends lines and pings, and bounds what waits for a slow reader.

Its query parameters and the bytes that it is sent are those of reference §8. There are two formats: MinIO's lines of
JSON, and server-sent events, which browsers understand (`EventSource`). What is sent is a response head and what the
format makes of events, in HTTP chunks if they are used.

A small event goes into the connection's write buffer. A large one stays where it is and goes there in pieces: all
streams that send it share its bytes, and all large events that are being sent have a limit together.

Asyncio accepts no TLS socket, so over TLS it gets one end of a socket pair, and a thread copies.
"""

import asyncio
import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from app.api.s3.errors import S3Error
from app.api.wsgi_layers import PROTECTION
from app.config.arn import TargetId
from app.events import minio_json
from app.events.model import EVENT_ID
from app.events.names import UnknownEventName, expand
from app.rules.matching import Matcher, compile_rules
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


MAX_BUFFERED_BYTES = 256 * 1024  # bytes buffered for a slow reader, in addition to the kernel's buffer
MAX_LARGE_BYTES = 64 * 2**20  # bytes of larger events that the streams of a process send at the same time
_PIECE = 64 * 1024  # bytes of such an event that are given to the connection at a time
_STALL = 10.0  # seconds in which a reader of one has to read some of it, while others wait for one
LEGACY_PING = 0.5  # seconds
_EARLY = 0.05  # seconds by which a tick may be early
_LINGER = 10.0  # seconds that a reader has for the end of a stream
_CHUNK = 64 * 1024


class Stream(asyncio.Protocol):
    """One listener. `position`, `live` and `resumed` belong to the thread that reads the log, the rest to the loop's.

    `position` is the seq up to which it has been served; while it is `live`, it gets new events as they are recorded.
    """

    __slots__ = (
        "_after",
        "_after_sealed",
        "_chunked",
        "_closed",
        "_due",
        "_ends",
        "_format",
        "_head",
        "_large",
        "_opened",
        "_rest",
        "_rest_size",
        "_transport",
        "live",
        "matcher",
        "needs",
        "position",
        "query",
        "resumed",
    )  # fmt: skip

    def __init__(
        self,
        query: StreamQuery,
        position: int,
        *,
        number: str,
        chunked: bool,
        large: "LargeEvents",
        opened: "Callable[[Stream], None]",
        closed: "Callable[[Stream], None]",
    ) -> None:
        self.query = query
        self.matcher: Matcher[bool] = compile_rules([(query.rule, True)])
        self.position = position
        self.live = False
        self.resumed = bool(query.resume_after)
        self._format = query.wire_format
        self._ends: float | None = None
        self._chunked = chunked
        self._head = head(chunked=chunked, number=number)
        self._large = large
        self._rest: list[memoryview] = []  # a few parts; a deque would take ten times as much for each idle stream
        self._rest_size = 0
        self.needs: tuple[Line, int] | None = None  # the large event that it has to send next, and its size
        self._opened = opened
        self._closed = closed
        self._transport: Any = None
        self._after = query.resume_after
        self._after_sealed = False
        self._due = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the headers immediately: the client then knows that it will miss no event from now on."""
        self._transport = transport
        now = asyncio.get_running_loop().time()
        self._due = now + (self.query.ping or LEGACY_PING)
        self._ends = None if self._format.longest is None else now + self._format.longest
        self._opened(self)  # first: who has the headers is counted among the streams
        self._transport.write(self._head)
        if self._format.greeting:
            self._write(self._format.greeting)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Report that the listener has disconnected."""
        self._transport = None
        self._rest.clear()
        self._large.release(self)
        self._closed(self)

    def send(self, lines: Sequence[Line]) -> int:
        """Send events until so much waits for the reader, or for all readers together, and return how many."""
        self.needs = None
        for sent, line in enumerate(lines):
            if self.waiting > MAX_BUFFERED_BYTES:
                return sent
            content = line.content
            if len(content) > MAX_BUFFERED_BYTES:
                shared = self._large.hold(self, line)
                if shared is None:
                    self.needs = line._replace(content=b""), len(content)
                    return sent
                content = shared
            before, after = self._format.around(line)
            self._write(before, content, after)
            self._after, self._after_sealed = line.event_id, False
        return len(lines)

    def send_gap_marker(self, missed: int) -> None:
        """Send the marker of a gap."""
        self._write(self._format.gap(missed, self._resume_id()))

    def keep_alive(self, now: float) -> None:
        """Send a ping, or MinIO's space, if it is due; end a stream that has lasted as long as its format allows."""
        if self._ends is not None and now >= self._ends + (_LINGER if self._rest else 0):
            self.end()
            return
        if now < self._due - _EARLY:
            return
        self._due = now + (self.query.ping or LEGACY_PING)
        if self.waiting <= MAX_BUFFERED_BYTES:
            self._write(self._format.ping(self.query.ping, self._resume_id()))

    def passed(self, event_id: str) -> None:
        """Remember that the listener has got everything that it wants up to this event of the log."""
        self._after_sealed = self.query.seal is not None and (self._after_sealed or event_id != self._after)
        self._after = event_id

    def _resume_id(self) -> str:
        return self.query.seal(self._after) if self.query.seal and self._after_sealed and self._after else self._after

    def wants(self, row: Any) -> bool:
        """Return whether an event of the log goes to the target of the query, if it has one."""
        return self.query.target_id is None or f",{self.query.target_id}," in row.targets

    def end(self) -> None:
        """End the stream after what is buffered; in the middle of a large event at once."""
        if self._rest:
            self.abort()
        elif self._transport:
            if self._chunked:
                self._transport.write(LAST_CHUNK)
            self._transport.close()  # after what is buffered
            asyncio.get_running_loop().call_later(_LINGER, self._transport.abort)  # unless nobody reads it
            self._transport = None

    def abort(self) -> None:
        """Close the connection at once; the reader may resume after the last event that it has got whole."""
        if self._transport:
            self._transport.abort()

    @property
    def waiting(self) -> int:
        """The bytes that wait for the reader; any thread may read it."""
        transport = self._transport
        return transport.get_write_buffer_size() + self._rest_size if transport else 0

    def resume_writing(self) -> None:
        """Give the connection what waits, as much as it may buffer; called whenever its buffer is nearly empty."""
        while self._rest and self._transport and self._transport.get_write_buffer_size() <= MAX_BUFFERED_BYTES:
            part = self._rest.pop(0)
            if len(part) > _PIECE:
                self._rest.insert(0, part[_PIECE:])
            self._rest_size -= min(len(part), _PIECE)
            self._transport.write(part[:_PIECE])
        if not self._rest:
            self._large.release(self)

    def _write(self, *parts: bytes) -> None:
        if not self._transport:
            return
        framed = frame(parts, chunked=self._chunked)
        if self._rest or sum(map(len, framed)) > MAX_BUFFERED_BYTES:
            self._rest.extend(memoryview(part) for part in framed if part)
            self._rest_size += sum(map(len, framed))
            self.resume_writing()
        else:
            self._transport.write(b"".join(framed))


class LargeEvents:
    """The larger events that are being sent, each once for all streams, up to a limit.

    A stream whose event has no room gets it from the log later; it holds up no other. A reader that reads nothing of
    its event gives way to those that wait.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[int, str], tuple[bytes, set[Stream]]] = {}  # by seq and id
        self._is_wanted = False
        self._seen: dict[Stream, tuple[int, float]] = {}  # what waited for a reader, since when

    def has_room(self, line: Line, size: int) -> bool:
        """Return whether an event of this size can be sent; any thread may ask."""
        held = list(self._held.values())
        if not held or (line.seq, line.event_id) in self._held:
            return True
        has_room = sum([len(content) for content, _ in held]) + size <= MAX_LARGE_BYTES
        self._is_wanted |= not has_room
        return has_room

    def hold(self, stream: Stream, line: Line) -> bytes | None:
        """Return the content of an event, which is held until the stream has sent it; None if there is no room."""
        if not self.has_room(line, len(line.content)):
            return None
        content, streams = self._held.setdefault((line.seq, line.event_id), (line.content, set()))
        streams.add(stream)
        return content

    def release(self, stream: Stream) -> None:
        """Forget a stream that has sent its events."""
        self._seen.pop(stream, None)
        for place in [place for place, (_, streams) in self._held.items() if stream in streams]:
            streams = self._held[place][1]
            streams.discard(stream)
            if not streams:
                del self._held[place]

    def check(self, now: float) -> None:
        """Close the streams whose readers have read nothing for some time, if others wait."""
        if not self._is_wanted:
            self._seen.clear()
            return
        self._is_wanted = False
        for stream in {stream for _, streams in self._held.values() for stream in streams}:
            before, since = self._seen.setdefault(stream, (stream.waiting, now))
            if stream.waiting <= before - _PIECE:
                self._seen[stream] = stream.waiting, now
            elif now - since >= _STALL:
                stream.abort()


def decrypt(secure: ssl.SSLSocket, buffer_size: int) -> socket.socket:
    """Return a plain socket whose bytes are sent through `secure`; it is closed when `secure` is.

    At most `buffer_size` bytes are buffered. Received bytes are dropped: a stream's client sends nothing more. This
    takes one thread for each stream.
    """
    near, far = socket.socketpair()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_size)
    threading.Thread(target=_copy, args=(secure, far), name="listen-tls", daemon=True).start()
    return near


def _copy(secure: ssl.SSLSocket, far: socket.socket) -> None:
    with secure, far, contextlib.suppress(OSError):  # TLS errors are OSErrors; the client has disconnected
        secure.setblocking(False)
        both = select.poll()
        both.register(secure, select.POLLIN)
        both.register(far, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in both.poll()}
            if secure.fileno() in ready and not _discard_input(secure):
                return
            if far.fileno() in ready:
                content = far.recv(_CHUNK)
                if not content:
                    secure.unwrap()
                    return
                _send(secure, far, content)


def _discard_input(secure: ssl.SSLSocket) -> bool:
    """Discard received bytes; return whether the client is still connected."""
    try:
        while secure.recv(_CHUNK):
            pass
    except ssl.SSLWantReadError:
        return True
    return False


def _send(secure: ssl.SSLSocket, far: socket.socket, content: bytes) -> None:
    """Send all of it, or raise OSError if the other end of the pair is closed before that."""
    rest = memoryview(content)
    while rest:
        events = select.POLLOUT
        try:
            rest = rest[secure.send(rest) :]
            continue
        except ssl.SSLWantReadError:
            events = select.POLLIN
        except ssl.SSLWantWriteError:
            pass
        either = select.poll()
        either.register(secure, events)
        either.register(far, 0)  # reports only that it was closed
        if far.fileno() in {descriptor for descriptor, _ in either.poll()}:
            raise ConnectionAbortedError
