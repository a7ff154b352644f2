"""Which errors may be the fault of a value, and which say that the database takes nothing now."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pymysql
import pytest
import sqlalchemy as sa

from app.outbox.engine.db_errors import Unstorable, is_full, may_be_a_value


def mysql(code: int, words: str = "") -> Exception:
    return _wrapped(pymysql.err.OperationalError(code, words))


def postgresql(code: str | None, statement: str | None = "INSERT") -> Exception:
    cause = type("Error", (Exception,), {"pgcode": code})()
    return sa.exc.OperationalError(statement, None, cause)


def sqlite(name: str) -> Exception:
    cause = sqlite3.OperationalError()
    cause.sqlite_errorname = name
    return _wrapped(cause)


def _wrapped(cause: Exception, kind: Callable[..., Exception] = sa.exc.OperationalError) -> Exception:
    return kind("INSERT", None, cause)


AWAY: dict[str, Any] = {
    "lock timeout": [mysql(1205), postgresql("55P03"), sqlite("SQLITE_BUSY"), sqlite("SQLITE_BUSY_SNAPSHOT")],
    "deadlock": [mysql(1213), postgresql("40P01"), postgresql("40001"), sqlite("SQLITE_LOCKED")],
    "cannot connect": [mysql(2003), mysql(1040), postgresql(None, None), postgresql("53300")],
    "a limit of time": [postgresql("57014"), mysql(3024), mysql(1969)],
    "a limit of memory": [postgresql("53200"), mysql(1037), mysql(1038), mysql(1041), sqlite("SQLITE_NOMEM")],
    "a limit that somebody set": [postgresql("53400")],
    "shutdown": [mysql(1053), postgresql("57P01"), postgresql("57P03")],
    "read-only": [mysql(1290), mysql(1836), postgresql("25006"), sqlite("SQLITE_READONLY")],
    "full": [mysql(1114), mysql(1021), postgresql("53100"), sqlite("SQLITE_FULL")],
    "permission": [mysql(1142), postgresql("42501"), _wrapped(Exception(), sa.exc.ProgrammingError)],
    "pool": [sa.exc.TimeoutError()],
    "ours": [AttributeError(), TimeoutError()],
}
VALUE = [
    mysql(1118),
    mysql(1153),
    mysql(2006),
    mysql(2013),
    mysql(1644),
    mysql(1197),
    postgresql("54000"),
    postgresql(None),
    postgresql("XX000"),
    sqlite("SQLITE_CONSTRAINT_TRIGGER"),
    sqlite(""),
    _wrapped(Exception(), sa.exc.DataError),
    _wrapped(pymysql.err.IntegrityError(1062, "Duplicate"), sa.exc.IntegrityError),
    ValueError(),
    OverflowError(),
    Unstorable(),
]


@pytest.mark.parametrize("kind", AWAY)
def test_what_concerns_every_write_is_no_events_fault(kind: str) -> None:
    assert [may_be_a_value(error) for error in AWAY[kind]] == [False] * len(AWAY[kind])


@pytest.mark.parametrize("error", VALUE, ids=repr)
def test_what_may_concern_one_event_is_looked_into(error: Exception) -> None:
    assert may_be_a_value(error)


def test_a_full_database_is_told_from_one_that_is_away() -> None:
    full = [*AWAY["full"], mysql(1030, "Got error 28 from storage engine"), mysql(1026, "(OS error 28 - No space)")]
    assert all(map(is_full, full))
    others = [error for kind, errors in AWAY.items() if kind != "full" for error in errors]
    others += [*VALUE, mysql(1030, "Got error 5 from storage engine"), SimpleNamespace()]
    assert not any(map(is_full, others))
