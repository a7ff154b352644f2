"""PostgreSQL connections that do not wait for ever: one that brings no answer in time is cut, and raises an error.

libpq has no limit of its own. The kernel's (`tcp_user_timeout`, keep-alive) tell of a machine that is gone, not of a
proxy, a tunnel or a pooler in between that holds the connection and has lost the server behind it.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

from psycopg2 import extensions

_CHECK_INTERVAL = 1.0  # seconds between two looks at what is waited for


class _Watchdog:
    """A thread of this process that cuts what waits for too long."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until: dict[int, float] = {}  # the descriptor of a connection that waits, and when it has waited enough
        self._running = False
        self.last_cut = float("-inf")

    @contextlib.contextmanager
    def over(self, descriptor: int, seconds: float) -> Iterator[None]:
        """Cut the connection when the block takes longer."""
        with self._lock:
            self._until[descriptor] = time.monotonic() + seconds
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="silence", daemon=True).start()
        try:
            yield
        finally:
            with self._lock:
                self._until.pop(descriptor, None)

    def _run(self) -> None:
        while True:
            time.sleep(_CHECK_INTERVAL)
            with self._lock:  # held while cutting: else the number could come to mean another connection
                now = time.monotonic()
                for descriptor in [one for one, until in self._until.items() if until < now]:
                    del self._until[descriptor]
                    self.last_cut = now
                    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as wire:
                        wire.shutdown(socket.SHUT_RDWR)


_watch = _Watchdog()


def _forked() -> None:
    """A child has none of its parent's threads."""
    global _watch  # noqa: PLW0603 - one for each process is the point
    _watch = _Watchdog()


os.register_at_fork(after_in_child=_forked)


def opened_before_last_timeout(opened: float) -> bool:
    """Whether another connection of this process has been cut since this one was opened (`time.monotonic()`).

    They have most likely lost their server together, and each would cost its user the whole patience to find out.
    """
    return opened <= _watch.last_cut


class Connection(extensions.connection):
    """A connection that raises `OperationalError` when an answer takes longer than `patience` seconds; None: never."""

    patience: float | None = None

    def commit(self) -> None:
        """As the driver's."""
        with self.waiting():
            super().commit()

    def rollback(self) -> None:
        """As the driver's."""
        with self.waiting():
            super().rollback()

    def waiting(self) -> contextlib.AbstractContextManager[None]:
        """Around whatever waits for the server."""
        if self.patience is None or self.closed:
            return contextlib.nullcontext()
        return _watch.over(self.fileno(), self.patience)


class Cursor(extensions.cursor):
    """A cursor of such a connection."""

    connection: Connection

    def execute(self, query: Any, vars: Any = None) -> None:  # noqa: A002 - the driver's own name
        """As the driver's."""
        with self.connection.waiting():
            super().execute(query, vars)

    def executemany(self, query: Any, vars_list: Any) -> None:
        """As the driver's."""
        with self.connection.waiting():
            super().executemany(query, vars_list)

    def copy_expert(self, sql: Any, file: Any, size: int = 8192) -> None:
        """As the driver's."""
        with self.connection.waiting():
            super().copy_expert(sql, file, size)
