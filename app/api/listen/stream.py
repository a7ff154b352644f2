"""One listener's connection, as the event loop holds it: it takes lines, keeps alive, and bounds what waits for it."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from app.api.listen.query import StreamQuery
from app.api.listen.wire_format import PING, SPACE, Line, framed, head, marker
from app.rules.matching import Matcher, compile_rules

MOST_WAITING = 256 * 1024  # bytes for a slow reader, beside what the kernel holds
LEGACY_PING = 0.5  # seconds
_EARLY = 0.05  # seconds by which a tick may come before its time


class Stream(asyncio.Protocol):
    """One listener. `place`, `live` and `resumed` belong to the thread that follows the log, the rest to the loop's.

    `place` is the seq up to which it has been served; while it is `live`, new events come to it as they are recorded.
    """

    __slots__ = (
        "_after",
        "_chunked",
        "_due",
        "_entered",
        "_gone",
        "_head",
        "_transport",
        "alone",
        "live",
        "place",
        "query",
        "resumed",
    )  # fmt: skip

    def __init__(
        self,
        query: StreamQuery,
        place: int,
        *,
        number: str,
        chunked: bool,
        entered: "Callable[[Stream], None]",
        gone: "Callable[[Stream], None]",
    ) -> None:
        self.query = query
        self.alone: Matcher[bool] = compile_rules([(query.rule, True)])
        self.place = place
        self.live = False
        self.resumed = bool(query.resume_after)
        self._chunked = chunked
        self._head = head(chunked=chunked, number=number)
        self._entered = entered
        self._gone = gone
        self._transport: Any = None
        self._after = query.resume_after
        self._due = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the headers at once: a client knows then that nothing will be missed from here on."""
        self._transport = transport
        self._transport.write(self._head)
        self._due = asyncio.get_running_loop().time() + (self.query.ping or LEGACY_PING)
        self._entered(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """The listener is gone."""
        self._transport = None
        self._gone(self)

    def send(self, lines: Sequence[Line], *, bounded: bool) -> int:
        """Send events and say how many; where it is `bounded`, only as many as there is room for."""
        for sent, line in enumerate(lines):
            if bounded and self.waiting > MOST_WAITING:
                return sent
            self._write(line.content)
            self._after = line.event_id
        return len(lines)

    def tell(self, missed: int) -> None:
        """Send the marker of a gap."""
        self._write(marker(missed, self._after))

    def keep_alive(self, now: float) -> None:
        """Send a ping, or MinIO's blank, where it is due."""
        if now < self._due - _EARLY:
            return
        self._due = now + (self.query.ping or LEGACY_PING)
        if self.waiting <= MOST_WAITING:
            self._write(PING if self.query.ping else SPACE)

    @property
    def waiting(self) -> int:
        """Bytes that the reader has not taken yet; may be asked by any thread."""
        transport = self._transport
        return transport.get_write_buffer_size() if transport else 0

    def _write(self, content: bytes) -> None:
        if self._transport:
            self._transport.write(framed(content, chunked=self._chunked))
