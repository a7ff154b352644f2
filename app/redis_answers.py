"""Limit how long an answer of the task broker may take, if that is a Redis: redis-py's own limit is that of one read.

A Redis that sends a byte a second would hold a worker's loop, and each request that waits for the broker.
"""

import time
from typing import Any

from app import socket_watchdog


class _Answer:
    """An answer that is read, and cut off when its time is over."""

    def __init__(self, descriptor: int, seconds: float) -> None:
        self._descriptor = descriptor
        self.ends = time.monotonic() + seconds

    def cut(self) -> None:
        """Shut the connection down, so that whoever reads from it goes on."""
        socket_watchdog.shut_down(self._descriptor)


class _Limited:
    """A connection whose answers take as long together as a read may, `socket_timeout`."""

    def read_response(self, *arguments: Any, **options: Any) -> Any:
        """Read an answer. Raises the connection's errors."""
        wire, seconds = self._sock, self.socket_timeout  # type: ignore[attr-defined]  # of the connection
        if wire is None or not seconds:
            return super().read_response(*arguments, **options)  # type: ignore[misc]  # which it is mixed into
        answer = _Answer(wire.fileno(), seconds)
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
