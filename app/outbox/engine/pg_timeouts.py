"""Limit how long PostgreSQL connections wait: without an answer in time, shut the socket down, which raises an error.

libpq has no such limit. The kernel's limits (`tcp_user_timeout`, keep-alive) detect a machine that has failed, but not
a proxy, tunnel or pooler that keeps the connection open after it has lost the server.
"""

import contextlib
import math
import time
from typing import Any

from psycopg2 import extensions

from app import socket_watchdog

_last_cut = float("-inf")  # when this process last shut a connection down whose server counts as lost


class _Wait:
    """A block in which a connection waits for the server; it is shut down if that takes longer than `seconds`.

    (A duplicate of the descriptor would need a free one.)
    """

    __slots__ = ("_descriptor", "_seconds", "ends")

    def __init__(self, descriptor: int, seconds: float) -> None:
        self._descriptor, self._seconds = descriptor, seconds
        self.ends = math.inf

    def __enter__(self) -> None:
        self.ends = time.monotonic() + self._seconds
        socket_watchdog.add(self)

    def __exit__(self, *_error: object) -> None:
        socket_watchdog.remove(self)

    def cut(self) -> None:
        """Shut the connection down; the server counts as lost then."""
        global _last_cut  # noqa: PLW0603 - one for each process is the point
        _last_cut = time.monotonic()
        socket_watchdog.shut_down(self._descriptor)


def opened_before_last_timeout(opened: float) -> bool:
    """Return whether a connection of this process has been shut down since `opened` (`time.monotonic()`).

    All connections have most likely lost the server together, and each would cost its user a whole timeout.
    """
    return opened <= _last_cut


class Connection(extensions.connection):
    """A connection that raises `OperationalError` if an answer takes longer than `patience` seconds; None: no limit."""

    patience: float | None = None

    def commit(self) -> None:
        """Commit within `patience` seconds."""
        with self.waiting():
            super().commit()

    def rollback(self) -> None:
        """Roll back within `patience` seconds."""
        with self.waiting():
            super().rollback()

    def encoded(self, text: str) -> bytes:
        """Encode a text as the driver sends it."""
        return text.encode(extensions.encodings[self.encoding])

    def waiting(self) -> contextlib.AbstractContextManager[None]:
        """Return the context manager in which every call that waits for the server must run."""
        if self.patience is None or self.closed:
            return contextlib.nullcontext()
        return _Wait(self.fileno(), self.patience)


class Cursor(extensions.cursor):
    """A cursor whose statements are limited by its connection's `patience`."""

    connection: Connection

    def execute(self, query: Any, vars: Any = None) -> None:  # noqa: A002 - the driver's own name
        """Execute a statement within the connection's `patience`."""
        with self.connection.waiting():
            super().execute(query, vars)

    def executemany(self, query: Any, vars_list: Any) -> None:
        """Execute a statement for many rows within the connection's `patience`."""
        with self.connection.waiting():
            super().executemany(query, vars_list)

    def copy_expert(self, sql: Any, file: Any, size: int = 8192) -> None:
        """Run COPY within the connection's `patience`."""
        with self.connection.waiting():
            super().copy_expert(sql, file, size)
