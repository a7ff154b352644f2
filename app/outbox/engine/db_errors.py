"""Classify errors of the outbox database: is it unavailable, is it full, or may a single value be at fault?"""

import errno
import sqlite3
from typing import Any

import sqlalchemy as sa

# The driver or the database refuses a value, now and whenever it is sent.
VALUE_ERRORS = (sa.exc.DataError, ValueError, OverflowError)


class Unstorable(ValueError):
    """The database takes other events but refuses this one, whenever it is sent; the message has its reason."""


# PostgreSQL: classes (two characters) and codes of what concerns every write alike, whatever its values.
_POSTGRESQL = frozenset(
    (
        "08",  # connection
        "25",  # transaction state, such as a standby's read-only
        "28",  # login
        "3D",  # no such database
        "40",  # deadlock, serialisation failure
        "42",  # permission, or a missing table
        "53",  # disk or memory full, too many connections, a limit that somebody set
        "55",  # lock timeout
        "57",  # a statement_timeout or an administrator cancels it; shutdown, restart, recovery
        "58",  # input and output
    )
)
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
    """Whether a single value may have caused the error, so that the same write without it would succeed.

    True also for a lost connection in the midst of a statement: a server hangs up on a packet that is too large.
    Whether it was the value shows when a write without it succeeds at the same moment.
    """
    if isinstance(error, VALUE_ERRORS):
        return True
    if not isinstance(error, sa.exc.DBAPIError) or isinstance(error, sa.exc.ProgrammingError):
        return False
    cause: Any = error.orig
    if hasattr(cause, "pgcode"):
        code = cause.pgcode
        if not code:  # the connection broke, or could not be made
            return error.statement is not None
        return not any(code.startswith(known) for known in _POSTGRESQL)
    if isinstance(cause, sqlite3.Error):
        return not _sqlite_name(cause).startswith(_SQLITE)
    return _mysql_code(cause) not in _MYSQL


def is_full(error: BaseException) -> bool:
    """Whether the database has no room left for what it should store."""
    cause: Any = error.orig if isinstance(error, sa.exc.DBAPIError) else None
    if hasattr(cause, "pgcode"):
        return bool(cause.pgcode == "53100")
    if isinstance(cause, sqlite3.Error):
        return _sqlite_name(cause) == "SQLITE_FULL"
    code = _mysql_code(cause)
    # 1030 and 1026 carry the operating system's number: "Got error 28 from storage engine".
    return code in _MYSQL_FULL or (code in (1026, 1030) and f"rror {errno.ENOSPC} " in str(cause))


def _sqlite_name(error: sqlite3.Error) -> str:
    return str(getattr(error, "sqlite_errorname", None) or "")


def _mysql_code(error: Any) -> int:
    code = error.args[0] if getattr(error, "args", None) else 0
    return code if isinstance(code, int) else 0
