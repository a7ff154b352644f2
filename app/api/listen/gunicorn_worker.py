"""Gunicorn's worker with threads, from which a request may take its connection along."""

import socket
from collections.abc import Callable
from typing import Any

from gunicorn.workers.gthread import ThreadWorker


class SocketHandedOver(Exception):
    """Raised instead of an answer: whoever takes the socket answers on it, and gunicorn has nothing more to do."""

    def __init__(self, take: Callable[[socket.socket], None]) -> None:
        super().__init__("the connection was handed over")
        self.take = take


class Worker(ThreadWorker):  # type: ignore[misc]  # gunicorn ships no types
    """As `gthread`, but a connection that is handed over is not closed with the request, nor counted any more."""

    def handle_request(self, req: Any, conn: Any) -> Any:
        """Serve one request."""
        try:
            return super().handle_request(req, conn)
        except SocketHandedOver as handed:
            # Gunicorn shuts down and closes what it finds here; closing alone would be no use to a copy of the socket.
            taken, conn.sock = conn.sock, socket.socket()
            handed.take(taken)
            return False
