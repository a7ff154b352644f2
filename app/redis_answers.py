"""Limit how long an answer of the task broker may take, if that is a Redis: redis-py's own limit is that of one read.

A Redis that sends a byte a second would hold a worker's loop, and each request that waits for the broker.
"""

import contextlib
import socket
import time
from typing import Any

from app import socket_watchdog

_GRACE_SECONDS = 1.0  # beyond the limit of a read: its error says that nothing came, and not that Redis has closed


class _Answer:
    """An answer that is read, and cut off when its time is over."""

    def __init__(self, wire: socket.socket, seconds: float) -> None:
        self._wire = wire
        self.ends = time.monotonic() + seconds + _GRACE_SECONDS

    def cut(self) -> None:
        """Shut the connection down, so that whoever reads from it goes on.

        Not by its descriptor: redis-py closes a connection that fails before it is watched no more, and another one may
        have got the number.
        """
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._wire, socket.SHUT_RDWR)  # TLS' own would disturb who reads


class _Limited:
    """A connection whose answers take little longer as a whole than a read may, `socket_timeout`."""

    def read_response(self, *arguments: Any, **options: Any) -> Any:
        """Read an answer. Raises the connection's errors."""
        wire, seconds = self._sock, self.socket_timeout  # type: ignore[attr-defined]  # of the connection
        if wire is None or not seconds:
            return super().read_response(*arguments, **options)  # type: ignore[misc]  # which it is mixed into
        answer = _Answer(wire, seconds)
        socket_watchdog.add(answer)
        try:
            return super().read_response(*arguments, **options)  # type: ignore[misc]  # as above
        finally:
            socket_watchdog.remove(answer)


def limit_answers(channel: Any) -> None:
    """Have the connections be limited that this class of kombu's channels makes from now on in this process."""
    for name in ("connection_class", "connection_class_ssl"):
        connection = getattr(channel, name)
        if not issubclass(connection, _Limited):
            setattr(channel, name, type(connection.__name__, (_Limited, connection), {}))
