"""Know whether this process reaches the outbox database, and log that it is lost and that it is back, once each.

`Database` reports what happens to its connections. So every process that uses the database logs this in one way, also
one that only records its heartbeats, and nobody logs it for each request or job that fails meanwhile.
"""

import logging
import math
import os
import threading
import time

from app.logs import Repetitions
from app.outbox.engine.db_errors import describe_error, is_full

log = logging.getLogger("bucketwire.outbox")


class OutboxState:
    """The state of one process, which all of its connections share. Safe to use from any thread.

    Only a process of the service logs it, after `watch`: a command says itself why it fails.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_watching = False
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._is_lost = False
        self._back_at = -math.inf  # by time.monotonic()
        self._repetitions = Repetitions()

    def watch(self) -> None:
        """Log from now on, in this process and in those that it forks."""
        self._is_watching = True

    def lost(self, error: BaseException | None, opened_at: float = math.inf) -> None:
        """Note a connection that is lost, or cannot be opened; `opened_at` is when it was, by `monotonic()`.

        One that was opened before the database was back last most likely broke then, and nobody has used it since.
        """
        with self._lock:
            self._follow_fork()
            if self._is_lost or opened_at < self._back_at:
                return
            self._is_lost = True
        if self._is_watching:
            text = describe_error(error) if error is not None else "the connection is lost"
            log.warning("the outbox database is unavailable: %s", text)

    def connected(self) -> None:
        """Note that a connection has been opened."""
        with self._lock:
            self._follow_fork()
            if not self._is_lost:
                return
            self._is_lost, self._back_at = False, time.monotonic()
        if self._is_watching:
            log.info("the outbox database is available again")

    def failed(self, error: BaseException) -> None:
        """Note a request or a job that failed because of the database; nothing is logged that is known already."""
        what, level = ("full", logging.ERROR) if is_full(error) else ("unavailable", logging.WARNING)
        text = describe_error(error)
        with self._lock:
            self._follow_fork()
            number = 0 if self._is_lost else self._repetitions.take(text)
        if number and self._is_watching:
            log.log(level, "the outbox database is %s: %s", what, text, extra={"failures": number})

    def _follow_fork(self) -> None:
        if self._pid != os.getpid():
            self._begin()


outbox_state = OutboxState()
