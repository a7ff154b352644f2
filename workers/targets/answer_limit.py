"""Limit what a remote may send: as the answer to a request, and as one message of a source's queue.

A remote that claims, or sends, more is refused before its bytes fill the memory; the connection is closed.
"""

from typing import Any

MAX_ANSWER_BYTES = 16 << 20
MAX_MESSAGE_BYTES = 64 << 20  # NATS' largest; a request to the API is no larger either


class AnswerTooLong(OSError):
    """The remote sends more than any answer has. Drivers treat it as a lost connection."""

    def __init__(self, limit: int, claimed: int = 0) -> None:
        super().__init__(
            f"the remote claims an answer of {claimed:,} bytes, more than {limit:,}"
            if claimed
            else f"the remote sends an answer of more than {limit:,} bytes"
        )


class LimitedSocket:
    """A connected socket by which at most `limit` bytes come after each send. Then it raises `AnswerTooLong`."""

    def __init__(self, socket: Any, limit: int) -> None:
        self.socket = socket
        self.problem: AnswerTooLong | None = None
        self._limit = self._left = limit

    def __getattr__(self, name: str) -> Any:
        return getattr(self.socket, name)

    def recv(self, *arguments: Any) -> bytes:
        """Receive bytes."""
        received: bytes = self.socket.recv(*arguments)
        self._count(len(received))
        return received

    def recv_into(self, *arguments: Any) -> int:
        """Receive bytes into a buffer."""
        count: int = self.socket.recv_into(*arguments)
        self._count(count)
        return count

    def send(self, *arguments: Any) -> int:
        """Send bytes; the limit begins again."""
        self._left = self._limit
        return int(self.socket.send(*arguments))

    def sendall(self, *arguments: Any) -> None:
        """Send all bytes; the limit begins again."""
        self._left = self._limit
        self.socket.sendall(*arguments)

    def _count(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            self.problem = AnswerTooLong(self._limit)
            raise self.problem
