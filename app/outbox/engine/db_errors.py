"""Classify errors of the outbox database, and know whether this process reaches it.

An error says that the database is unavailable, that it is full, or that a single value may be the cause. `Database`
reports what happens to its connections to `outbox_state`. So every process that uses the database logs in one way, once
each, that it is lost and that it is back, and nobody logs it for each request or job that fails meanwhile.
"""

import errno
import logging
import math
import os
import re
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from app.logs import Repetitions, clause

# Errors by which the driver or the database refuses a value; a retry fails too.
VALUE_ERRORS = (sa.exc.DataError, ValueError, OverflowError)


def describe_error(error: BaseException) -> str:
    """Return the driver's error message as a clause of up to 500 characters, without statement and values."""
    text = str(error.orig if isinstance(error, sa.exc.DBAPIError) else error)
    return clause(text)[:500] or type(error).__name__


class Unstorable(ValueError):
    """The database accepts other events but refuses this one, also in retries; the message is its reason."""


@contextmanager
def as_sqlalchemy(driver: Any, statement: str, invalidate: Callable[[BaseException], None]) -> Iterator[None]:
    """Raise the errors of a driver's connection as SQLAlchemy does, so that callers handle only one kind of error.

    If the connection is lost, `invalidate` is called, which takes it out of its pool.
    """
    try:
        yield
    except driver.Error as error:
        if driver.closed:
            invalidate(error)
        raise sa.exc.DBAPIError.instance(statement, None, error, driver.Error) from error


# PostgreSQL: classes (two characters) and codes of errors that affect every write, independent of its values.
_POSTGRESQL = frozenset(
    (
        "08",  # connection
        "25",  # transaction state, such as a standby's read-only
        "28",  # login
        "3D",  # no such database
        "40",  # deadlock, serialisation failure
        "42",  # permission, or a missing table
        "53",  # disk or memory full, too many connections, configured limit exceeded
        "55",  # lock timeout
        "57",  # cancelled by statement_timeout or an administrator; shutdown, restart, recovery
        "58",  # I/O error
    )
)
# Of a connection that is not opened psycopg2 has the text alone: the server's severity in its language, its message.
_POSTGRESQL_ANSWER = re.compile(r"(?:^|: )\w+:  ")
_OF_MYSQL_CLIENT = range(2000, 3000)  # codes of the driver's own
_MYSQL_FULL = frozenset((1021, 1114, 3675))
_MYSQL = _MYSQL_FULL | {
    1040, 1129, 1130, 1203, 1226,  # connections
    1044, 1045, 1142, 1143, 1227,  # permission
    1046, 1049, 1054, 1146,  # database, table or column missing
    1047, 1290, 1792, 1836,  # node not ready, read-only
    1053, 1317, 1927,  # shutdown, killed
    1969, 3024,  # max_statement_time, max_execution_time
    1037, 1038, 1041,  # memory
    1205, 1213,  # lock timeout, deadlock
    2002, 2003, 2005, 2026,  # cannot connect
}  # fmt: skip
_SQLITE = (
    "SQLITE_AUTH", "SQLITE_BUSY", "SQLITE_CANTOPEN", "SQLITE_CORRUPT", "SQLITE_FULL", "SQLITE_IOERR", "SQLITE_LOCKED",
    "SQLITE_NOMEM", "SQLITE_NOTADB", "SQLITE_PERM", "SQLITE_PROTOCOL", "SQLITE_READONLY",
)  # fmt: skip


def may_be_a_value(error: BaseException) -> bool:
    """Return whether a single value may have caused the error, so that the same write without it would succeed.

    This includes a connection lost during a statement, because a server disconnects on a packet that is too large. The
    value is the cause if a write without it succeeds at the same time.
    """
    if isinstance(error, VALUE_ERRORS):
        return True
    if not isinstance(error, sa.exc.DBAPIError) or isinstance(error, sa.exc.ProgrammingError):
        return False
    cause: Any = error.orig
    if hasattr(cause, "pgcode"):
        code = cause.pgcode
        if not code:  # the connection broke, or could not be opened
            return error.statement is not None
        return not any(code.startswith(known) for known in _POSTGRESQL)
    if isinstance(cause, sqlite3.Error):
        return not _sqlite_name(cause).startswith(_SQLITE)
    return _mysql_code(cause) not in _MYSQL


def is_refusal(error: BaseException) -> bool:
    """Return whether a server has answered that it opens no connection, or whether nobody has answered at all."""
    if hasattr(error, "pgcode"):
        return _POSTGRESQL_ANSWER.search(str(error)) is not None
    code = _mysql_code(error)
    return code > 0 and code not in _OF_MYSQL_CLIENT


def ran_out_of_time(driver: Any, error: BaseException | None) -> bool:
    """Return whether a connection was given up because an answer took too long, and did not break by itself."""
    return getattr(driver, "was_cut", False) or isinstance(getattr(error, "__context__", None), TimeoutError)


def is_full(error: BaseException) -> bool:
    """Return whether the database's storage is full."""
    cause: Any = error.orig if isinstance(error, sa.exc.DBAPIError) else None
    if hasattr(cause, "pgcode"):
        return bool(cause.pgcode == "53100")
    if isinstance(cause, sqlite3.Error):
        return _sqlite_name(cause) == "SQLITE_FULL"
    code = _mysql_code(cause)
    # 1030 and 1026 contain the operating system's error number: "Got error 28 from storage engine".
    return code in _MYSQL_FULL or (code in (1026, 1030) and f"rror {errno.ENOSPC} " in str(cause))


def _sqlite_name(error: sqlite3.Error) -> str:
    return str(getattr(error, "sqlite_errorname", None) or "")


def _mysql_code(error: Any) -> int:
    code = error.args[0] if getattr(error, "args", None) else 0
    return code if isinstance(code, int) else 0


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
