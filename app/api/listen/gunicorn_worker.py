"""Gunicorn's threaded worker, extended so that a request can hand its connection over."""

import socket
from collections.abc import Callable
from typing import Any

from gunicorn.workers.gthread import ThreadWorker


class SocketHandedOver(Exception):
    """Raised instead of returning a response: `take` gets the socket and answers on it, without gunicorn."""

    def __init__(self, take: Callable[[socket.socket], None]) -> None:
        super().__init__("the connection was handed over")
        self.take = take


class Worker(ThreadWorker):  # type: ignore[misc]  # gunicorn ships no types
    """Gunicorn's `gthread`, except that a connection that was handed over is neither closed nor counted any more."""

    def handle_request(self, req: Any, conn: Any) -> Any:
        """Handle one request."""
        try:
            return super().handle_request(req, conn)
        except SocketHandedOver as handed:
            # Gunicorn shuts down and closes the socket in `conn`, and a shutdown would also affect a copy of it.
            taken, conn.sock = conn.sock, socket.socket()
            handed.take(taken)
            return False
