"""Read HTTP answers so that none is taken for another's: by http.client, for every client in the tree.

`http.client` skips the interim answer 100 only, takes any other for the answer itself, and forgets what a server sends
after an answer. Here every interim answer is read past (RFC 9110, section 15.2), its bytes are limited, and a
connection is closed once it is not certain where its next answer begins.
"""

import io
import re
import socket
from http.client import HTTPException, HTTPResponse, RemoteDisconnected, parse_headers
from typing import Any, Protocol

MAX_HEAD_BYTES = 256 * 1024  # of an answer's status line and headers, with those of the interim answers before it
_BUFFER_BYTES = 8192
_MAX_LENGTH_DIGITS = 18
_MAX_STATUS_LINE_BYTES = 65536
_SHOWN_CHARACTERS = 100
_SWITCHING_PROTOCOLS = 101
_STATUS_LINE = re.compile(r"(HTTP/[0-9][^ \t\r\n]*)[ \t]+([1-9][0-9]{2})(?:[ \t]([^\n]*))?\r?\n", re.ASCII)


class InvalidAnswer(HTTPException):
    """What the server sent is no answer to the request, or has no certain end."""


class Connection(Protocol):
    """What an answer came by."""

    heard: bool  # whether a byte of the answer to the request has come
    is_partly_sent: bool  # whether the answer began before the whole request was sent

    def close(self) -> None:
        """Close it; it may be opened again."""


class _Wire(io.RawIOBase):
    """What a socket receives: at most `left` bytes, and nothing more once it is `dry`."""

    def __init__(self, received: io.RawIOBase, connection: Connection | None) -> None:
        self._received = received
        self._connection = connection
        self.left: float = MAX_HEAD_BYTES
        self.dry = False

    def readable(self) -> bool:
        """Return true."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Receive bytes; None if nothing more shall be received. Raises `InvalidAnswer` for too many."""
        if self.dry:
            return None
        count = self._received.readinto(buffer)
        if count:
            if self._connection is not None:
                self._connection.heard = True
            self.left -= count
            if self.left < 0:
                raise InvalidAnswer(f"the head of the answer, with interim answers, has over {MAX_HEAD_BYTES:,} bytes")
        return count

    def close(self) -> None:
        """Let go of the socket."""
        self._received.close()
        super().close()


class _Reader(io.BufferedReader):
    """The bytes of one answer; closes the connection if there are more when the answer has been read."""

    def __init__(self, wire: _Wire) -> None:
        super().__init__(wire, _BUFFER_BYTES)
        self._wire = wire
        self.connection: Connection | None = None

    def close(self) -> None:
        """End reading."""
        connection, self.connection = self.connection, None
        if connection is not None and not self.closed:
            self._wire.dry = True
            if self.peek(1):
                connection.close()
        super().close()


class Answer(HTTPResponse):
    """The final answer to a request; `connection` is closed after one that is not all that the server sent."""

    def __init__(
        self, sock: socket.socket, *arguments: Any, connection: Connection | None = None, **options: Any
    ) -> None:
        self._wire = _Wire(sock.makefile("rb", buffering=0), connection)
        self._reader = _Reader(self._wire)
        self._connection = connection
        super().__init__(self, *arguments, **options)  # type: ignore[arg-type]  # it asks a socket only for its file

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return the file of the socket."""
        return self._reader

    def begin(self) -> None:
        """Read the head. Raises `HTTPException`, also for one that leaves open where the body ends."""
        super().begin()
        self._wire.left = float("inf")
        self._reader.connection = self._connection
        lengths = {each.strip() for value in self._values("content-length") for each in value.split(",")}
        if len(lengths) > 1 or not all(map(_is_length, lengths)):
            raise InvalidAnswer(f"the answer's Content-Length is {' and '.join(sorted(map(repr, lengths)))}")
        codings = [value.strip().lower() for value in self._values("transfer-encoding")]
        if codings and (lengths or codings != ["chunked"] or self.version < 11):
            self.will_close = True
        if self._connection is not None and self._connection.is_partly_sent:
            self.will_close = True

    def _read_status_line(self) -> tuple[str, int, str]:
        """Read one line; `http.client` would take `+200` and `2_00` for 200, as Python does."""
        line = self.fp.readline(_MAX_STATUS_LINE_BYTES).decode("latin-1")
        if not line:
            raise RemoteDisconnected("the server closed the connection without an answer")
        found = _STATUS_LINE.fullmatch(line)
        if found is None:
            self._close_conn()  # type: ignore[attr-defined]  # typeshed leaves it out
            raise InvalidAnswer(f"the server sent no status line of HTTP, but {line[:_SHOWN_CHARACTERS]!r}")
        version, status, reason = found.groups(default="")
        return version, int(status), reason.strip()

    def _read_next_chunk_size(self) -> int:
        """Return the size of the next chunk, of which no negative one is read. Raises `InvalidAnswer`."""
        size: int = super()._read_next_chunk_size()  # type: ignore[misc]  # typeshed leaves it out
        if size < 0:
            raise InvalidAnswer(f"a chunk of the answer has {size} bytes")
        return size

    def _values(self, name: str) -> list[str]:
        return self.headers.get_all(name, [])

    def _read_status(self) -> tuple[str, int, str]:
        """Return the status line of the next final answer; also called for a proxy's answer to CONNECT."""
        while True:
            version, status, reason = self._read_status_line()
            if status == _SWITCHING_PROTOCOLS:
                raise InvalidAnswer("the server switches to another protocol (101), which nobody asked for")
            if not 100 <= status <= 199:
                return version, status, reason
            parse_headers(self.fp)


def _is_length(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAX_LENGTH_DIGITS
