"""Connections of urllib3 that read answers by `app.http_answers`, with a limit for each answer.

An answer that is read as a whole has at most `max_answer_bytes`, before and after it is unpacked.
"""

import contextlib
import io
import ssl
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

from urllib3 import BaseHTTPResponse, HTTPConnectionPool, HTTPResponse, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ProtocolError

from app.events.limits import GZIP_OR_ZLIB, NotUnpacked, UnpacksTooLong, unpacked
from app.http_answers import Answer

MAX_ANSWER_BYTES = 16 << 20  # enough for the answers to the largest requests that are made
_PIECE_BYTES = 1 << 16
_CLOSED = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)


class ClosedWhileIdle(ProtocolError):
    """A kept-alive connection turned out to be closed: no byte of an answer came. The request may be sent again."""


class AnswerTooLong(ProtocolError):
    """The answer, or what it unpacks to, is longer than any that is expected; its connection is closed."""


class _Choice(threading.local):
    new = False


_choice = _Choice()


@contextlib.contextmanager
def new_connection() -> Iterator[None]:
    """Have the calling thread's request in the block sent over a connection that is made for it."""
    _choice.new = True
    try:
        yield
    finally:
        _choice.new = False


class StrictConnection(HTTPConnection):
    """A connection whose answers belong to its requests."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.response_class = partial(Answer, connection=self)  # type: ignore[assignment]  # it makes one
        self.heard = False
        self.is_partly_sent = False
        self._has_begun = False
        self._has_answered = False

    @property
    def is_connected(self) -> bool:
        """Whether the next request may be sent over this connection: nothing has come that nobody asked for."""
        return super().is_connected and not _choice.new and not _pending(self.sock)

    def request(self, *request: Any, **options: Any) -> None:
        """Send a request. Raises `ClosedWhileIdle`."""
        self.heard = self.is_partly_sent = self._has_begun = False
        if self._has_answered and not self.is_connected:
            raise ClosedWhileIdle("Connection aborted.", "the kept-alive connection was closed, or more came by it")
        try:
            with self._reused():
                super().request(*request, **options)
        except OSError:  # there may be an answer nevertheless
            self.is_partly_sent = True
            raise

    def send(self, data: Any) -> None:
        """Send a part of a request, and notice an answer that does not wait for all of it."""
        parts = [data]
        if isinstance(data, bytes) and len(data) > _PIECE_BYTES:
            parts = [memoryview(data)[start : start + _PIECE_BYTES] for start in range(0, len(data), _PIECE_BYTES)]
        for part in parts:
            if self._has_begun and not self._may_have_tickets() and not super().is_connected:
                self.is_partly_sent = True
            super().send(part)
            self._has_begun = True

    def getresponse(self) -> HTTPResponse:  # type: ignore[override]  # as urllib3's
        """Return the final answer. Raises `ClosedWhileIdle`."""
        with self._reused():
            answer = super().getresponse()
        self._has_answered = self.sock is not None
        return answer

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        self._has_answered = False
        super().close()

    def _may_have_tickets(self) -> bool:
        """Return whether what has come may be what TLS sends after its handshake."""
        return isinstance(self.sock, ssl.SSLSocket) and not self._has_answered

    @contextlib.contextmanager
    def _reused(self) -> Iterator[None]:
        reused = self._has_answered  # an error may close the connection
        try:
            yield
        except BrokenPipeError:
            raise  # urllib3 then looks for an answer
        except _CLOSED as error:
            if not reused or self.heard:
                raise
            raise ClosedWhileIdle("Connection aborted.", error) from error


class StrictTlsConnection(StrictConnection, HTTPSConnection):
    """Like `StrictConnection`, with TLS."""


class StrictPool(HTTPConnectionPool):
    """A pool that limits the answers that it reads as a whole."""

    ConnectionCls: type[StrictConnection] = StrictConnection
    max_answer_bytes = MAX_ANSWER_BYTES

    def urlopen(self, *request: Any, **options: Any) -> BaseHTTPResponse:
        """Make a request; with `preload_content` read the answer, unpacked. Raises urllib3's `HTTPError`."""
        is_read = options.get("preload_content", True)
        answer = super().urlopen(*request, **(options | {"preload_content": False}))
        return whole(answer, self.max_answer_bytes) if is_read else answer


class StrictTlsPool(StrictPool, HTTPSConnectionPool):
    """Like `StrictPool`, with TLS."""

    ConnectionCls = StrictTlsConnection


def pool_classes(limit: int) -> dict[str, type[HTTPConnectionPool]]:
    """Return, by scheme, the pools of a `PoolManager` whose answers have at most `limit` bytes."""

    class Pool(StrictPool):
        max_answer_bytes = limit

    class TlsPool(StrictTlsPool):
        max_answer_bytes = limit

    return {"http": Pool, "https": TlsPool}


def whole(answer: BaseHTTPResponse, limit: int, *, is_read: bool = True) -> HTTPResponse:
    """Read an answer of at most `limit` bytes, unpack it, and let go of its connection. Raises `HTTPError`.

    Without `is_read` the body of what is returned can be read once more, piece by piece.
    """
    claimed = answer.length_remaining
    if claimed is not None and claimed > limit:
        answer.close()
        raise AnswerTooLong(f"the answer claims {claimed:,} bytes, more than {limit:,}")
    body = bytearray()
    while piece := answer.read(min(_PIECE_BYTES, limit + 1 - len(body)), decode_content=False):
        body += piece
        if len(body) > limit:
            answer.close()
            raise AnswerTooLong(f"the answer has more than {limit:,} bytes")
    answer.release_conn()
    headers = answer.headers.copy()
    content = _unpack(bytes(body), headers.pop("Content-Encoding", ""), limit)
    if len(content) != len(body):
        headers["Content-Length"] = str(len(content))
    return HTTPResponse(
        io.BytesIO(content), headers, answer.status, version=answer.version, version_string=answer.version_string,
        reason=answer.reason, decode_content=False, preload_content=is_read,
    )  # fmt: skip


def _unpack(body: bytes, coding: str, limit: int) -> bytes:
    coding = coding.strip().lower()
    if not body or coding in ("", "identity"):
        return body
    if coding not in ("gzip", "x-gzip", "deflate"):
        raise ProtocolError(f"the answer is packed as {coding!r}, which was not asked for")
    try:
        return b"".join(unpacked(body, limit, GZIP_OR_ZLIB))
    except UnpacksTooLong as error:
        raise AnswerTooLong(f"the answer of {len(body):,} bytes {error}") from None
    except NotUnpacked as error:
        raise ProtocolError(f"the packed answer {error}") from None


def _pending(sock: Any) -> int:
    """Return the bytes that a TLS socket has received and unpacked, and nobody has read."""
    return int(sock.pending()) if isinstance(sock, ssl.SSLSocket) else 0
