"""Classify errors of the outbox database: it is unavailable, it is full, or a single value may be the cause."""

import errno
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from app.logs import clause

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
