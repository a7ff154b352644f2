"""Limit how long PostgreSQL connections wait: without an answer in time, shut the socket down, which raises an error.

libpq has no such limit. The kernel's limits (`tcp_user_timeout`, keep-alive) detect a machine that has failed, but not
a proxy, tunnel or pooler that keeps the connection open after it has lost the server.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

from psycopg2 import extensions

_CHECK_INTERVAL = 1.0  # seconds between two checks of the waiting connections


class _Watchdog:
    """A thread of this process that shuts down connections that wait for too long."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The deadline of each waiting connection, by file descriptor, and whether the server counts as lost after it.
        self._until: dict[int, tuple[float, bool]] = {}
        self._running = False
        self.last_cut = float("-inf")

    @contextlib.contextmanager
    def over(self, descriptor: int, seconds: float, *, lost: bool) -> Iterator[None]:
        """Shut the connection down if the block takes longer than this; `lost` says that the server is gone then."""
        with self._lock:
            if not self._running:
                threading.Thread(target=self._run, name="pg-timeouts", daemon=True).start()
                self._running = True
            self._until[descriptor] = (time.monotonic() + seconds, lost)
        try:
            yield
        finally:
            with self._lock:
                self._until.pop(descriptor, None)

    def _run(self) -> None:
        while True:
            time.sleep(_CHECK_INTERVAL)
            with self._lock:  # else another connection could reuse the descriptor before the shutdown
                now = time.monotonic()
                for descriptor, (until, lost) in list(self._until.items()):
                    if until < now:
                        del self._until[descriptor]
                        if lost:
                            self.last_cut = now
                        with contextlib.suppress(OSError, ValueError):
                            _shut_down(descriptor)


def _shut_down(descriptor: int) -> None:
    """Shut a socket down that its owner is going to close. (A duplicate would need a free descriptor.)"""
    wire = socket.socket(fileno=descriptor)
    try:
        wire.shutdown(socket.SHUT_RDWR)
    finally:
        wire.detach()


_watch = _Watchdog()


def _forked() -> None:
    """Start with a new watchdog, because a forked child has none of its parent's threads."""
    global _watch  # noqa: PLW0603 - one for each process is the point
    _watch = _Watchdog()


os.register_at_fork(after_in_child=_forked)


def opened_before_last_timeout(opened: float) -> bool:
    """Return whether a connection of this process has been shut down since `opened` (`time.monotonic()`).

    All connections have most likely lost the server together, and each would cost its user a whole timeout.
    """
    return opened <= _watch.last_cut


class Connection(extensions.connection):
    """A connection that raises `OperationalError` if an answer takes longer than `patience` seconds; None: no limit.

    `hurry` is the limit of a caller who cannot wait as long: that it is over does not mean that the server is lost.
    """

    patience: float | None = None
    hurry: float | None = None

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
        limits = [limit for limit in (self.patience, self.hurry) if limit is not None]
        if not limits or self.closed:
            return contextlib.nullcontext()
        return _watch.over(self.fileno(), min(limits), lost=min(limits) == self.patience)


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
