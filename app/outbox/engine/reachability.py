"""Know whether this process reaches the outbox database, and log that it is lost and that it is back, once each.

`Database` reports what happens to its connections. So every process that uses the database logs this in one way, also
one that only records its heartbeats, and nobody logs it for each request or job that fails meanwhile.
"""

import logging
import math
import os
import threading
import time
import weakref
from typing import Any

from app.logs import Repetitions
from app.outbox.engine.db_errors import describe_error, is_full, is_refusal

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
        self._back_at = self._doubted_at = -math.inf  # by time.monotonic()
        self._unanswered: float | None = None  # seconds for which a statement got no answer; nobody has asked since
        self._connections: weakref.WeakSet[Any] = weakref.WeakSet()  # the drivers', that are open or were
        self._repetitions = Repetitions()

    def watch(self) -> None:
        """Log from now on, in this process and in those that it forks."""
        self._is_watching = True

    def lost(self, error: BaseException | None, worked_at: float = math.inf) -> None:
        """Note a connection that is lost; `worked_at` is when it was known to work last, by `monotonic()`.

        One that worked before the database was back last most likely broke then, and nobody has used it since.
        """
        with self._lock:
            self._follow_fork()
            if self._is_lost or worked_at < self._back_at:
                return
            self._is_lost, self._unanswered = True, None
        if self._is_watching:
            text = describe_error(error) if error is not None else "the connection is lost"
            log.warning("the outbox database is unavailable: %s", text)

    def not_opened(self, error: BaseException) -> None:
        """Note a connection that could not be opened: the database is lost, unless it has refused only this one."""
        with self._lock:
            self._follow_fork()
            has_others = any(map(_is_open, self._connections))
            is_lost = not (has_others and is_refusal(error))
            text = describe_error(error)
            number = 0 if is_lost else self._repetitions.take(text)
        if is_lost:
            self.lost(error)
        elif number and self._is_watching:
            message = "the outbox database refuses a connection, others are open: %s"
            log.warning(message, text, extra={"failures": number})

    def doubt(self, seconds: float | None) -> None:
        """Note a connection that was given up, as a statement got no answer for so long: it waits, or all are lost."""
        with self._lock:
            self._follow_fork()
            self._doubted_at, self._unanswered = time.monotonic(), seconds

    def doubts(self, worked_at: float) -> bool:
        """Return whether a connection that worked then has to be asked before it is used again."""
        return worked_at <= self._doubted_at

    def answered(self) -> None:
        """Note that the database has answered on another connection."""
        with self._lock:
            self._follow_fork()
            seconds, self._unanswered = self._unanswered, None
            number = 0 if seconds is None else self._repetitions.take("unanswered")
        if number and self._is_watching:
            log.warning(
                "the outbox database answers, but not to a statement within %g s: does something hold a lock?", seconds,
                extra={"failures": number},
            )  # fmt: skip

    def connected(self, connection: Any) -> None:
        """Note that a connection has been opened."""
        with self._lock:
            self._follow_fork()
            self._connections.add(connection)
            was_lost, self._is_lost = self._is_lost, False
            if was_lost:
                self._back_at = time.monotonic()
        if was_lost and self._is_watching:
            log.info("the outbox database is available again")
        self.answered()

    def failed(self, error: BaseException) -> None:
        """Note a request or a job that failed because of the database; nothing is logged that is known already."""
        with self._lock:
            self._follow_fork()
            is_known = self._is_lost or self._unanswered is not None  # it is asked before it is used again
            is_of_full = is_full(error)
            text = describe_error(error)
            number = 0 if is_known and not is_of_full else self._repetitions.take(text)
        if number and self._is_watching:
            what, level = ("full", logging.ERROR) if is_of_full else ("unavailable", logging.WARNING)
            log.log(level, "the outbox database is %s: %s", what, text, extra={"failures": number})

    def _follow_fork(self) -> None:
        if self._pid != os.getpid():
            self._begin()


def _is_open(connection: Any) -> bool:
    """Return whether a driver's connection is open, as far as its process knows."""
    return bool(connection.open) if hasattr(connection, "open") else not connection.closed


outbox_state = OutboxState()
