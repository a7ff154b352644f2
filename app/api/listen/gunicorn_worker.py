"""Gunicorn's threaded worker, extended: a request can hand its connection over, and an orphan frees the address."""

import select
import socket
from collections.abc import Callable
from typing import Any

from gunicorn.workers.gthread import ThreadWorker

_NEXT_REQUEST = 1  # milliseconds


class SocketHandedOver(Exception):
    """Raised instead of returning a response: `take` gets the socket and answers on it, without gunicorn."""

    def __init__(self, take: Callable[[socket.socket], None]) -> None:
        super().__init__("the connection was handed over")
        self.take = take


class Worker(ThreadWorker):  # type: ignore[misc]  # gunicorn ships no types
    """Gunicorn's `gthread`, with three differences.

    A connection that was handed over is neither closed nor counted any more. A worker whose parent was killed stops
    listening at once, and then answers what it has begun. And a thread that has answered waits for a millisecond for
    the next request of the same connection, unless other requests wait for a thread: a sender of one event at a time,
    such as MinIO, gets its answers sooner by a tenth than by way of the main thread.
    """

    def handle(self, conn: Any) -> Any:
        """Handle a request, and those of the same connection that follow at once."""
        result = super().handle(conn)
        while result is True and self._comes_next(conn):
            result = super().handle(conn)
        return result

    def _comes_next(self, conn: Any) -> bool:
        """Return whether the connection has its next request within a millisecond, and no other waits meanwhile."""
        if conn.is_http2 or conn.parser.unreader.buf.getvalue() or self.tpool._work_queue.qsize():
            return False
        poll = select.poll()
        poll.register(conn.sock, select.POLLIN)
        return bool(poll.poll(_NEXT_REQUEST))

    def is_parent_alive(self) -> bool:
        """Return whether the parent runs; if not, close the listening sockets, so that its successor can bind.

        Gunicorn keeps them until the last connection has ended: for up to 30 s nobody answers new ones, and the
        successor gives up after five attempts.
        """
        if super().is_parent_alive():
            return True
        self.set_accept_enabled(False)
        for listener in self.sockets:
            listener.close()
        return False

    def handle_request(self, req: Any, conn: Any) -> Any:
        """Handle one request."""
        try:
            return super().handle_request(req, conn)
        except SocketHandedOver as handed:
            # Gunicorn shuts down and closes the socket in `conn`, and a shutdown would also affect a copy of it.
            taken, conn.sock = conn.sock, socket.socket()
            handed.take(taken)
            return False
