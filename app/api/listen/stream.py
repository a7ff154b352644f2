"""One listener's connection in the event loop: it sends lines and pings, and bounds its write buffer."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from app.api.listen.query import StreamQuery
from app.api.listen.wire_format import LAST_CHUNK, Line, frame, head
from app.rules.matching import Matcher, compile_rules

MAX_BUFFERED_BYTES = 256 * 1024  # bytes buffered for a slow reader, in addition to the kernel's buffer
LEGACY_PING = 0.5  # seconds
_EARLY = 0.05  # seconds by which a tick may be early
_LINGER = 10.0  # seconds that a reader has for the end of a stream


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
        "_opened",
        "_transport",
        "live",
        "matcher",
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
        self._opened = opened
        self._closed = closed
        self._transport: Any = None
        self._after = query.resume_after
        self._after_sealed = False
        self._due = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the headers immediately: the client then knows that it will miss no event from now on."""
        self._transport = transport
        self._transport.write(self._head)
        if self._format.greeting:
            self._write(self._format.greeting)
        now = asyncio.get_running_loop().time()
        self._due = now + (self.query.ping or LEGACY_PING)
        self._ends = None if self._format.longest is None else now + self._format.longest
        self._opened(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Report that the listener has disconnected."""
        self._transport = None
        self._closed(self)

    def send(self, lines: Sequence[Line]) -> int:
        """Send events until the write buffer is full, and return how many."""
        for sent, line in enumerate(lines):
            if self.waiting > MAX_BUFFERED_BYTES:
                return sent
            self._write(self._format.event(line))
            self._after, self._after_sealed = line.event_id, False
        return len(lines)

    def send_gap_marker(self, missed: int) -> None:
        """Send the marker of a gap."""
        self._write(self._format.gap(missed, self._resume_id()))

    def keep_alive(self, now: float) -> None:
        """Send a ping, or MinIO's space, if it is due; end a stream that has lasted as long as its format allows."""
        if self._ends is not None and now >= self._ends:
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
        """End the stream after what is buffered."""
        if self._transport:
            if self._chunked:
                self._transport.write(LAST_CHUNK)
            self._transport.close()  # after what is buffered
            asyncio.get_running_loop().call_later(_LINGER, self._transport.abort)  # unless nobody reads it
            self._transport = None

    @property
    def waiting(self) -> int:
        """The bytes in the write buffer; any thread may read it."""
        transport = self._transport
        return transport.get_write_buffer_size() if transport else 0

    def _write(self, content: bytes) -> None:
        if self._transport:
            self._transport.write(frame(content, chunked=self._chunked))
