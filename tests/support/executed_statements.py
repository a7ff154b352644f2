"""A plugin of pytest that notes which statements of ours each test executes on PostgreSQL, MySQL or MariaDB.

`python -m pytest -p tests.support.executed_statements` appends a line of JSON for each test to the file that
EXECUTED_STATEMENTS names: its tier, its id and its statements, without their values. A statement of a test's own is
none of ours.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pymysql.cursors import Cursor as MySqlCursor

from app.outbox.engine.postgresql import Cursor as PgCursor
from tests.support import tiers

VARIABLE = "EXECUTED_STATEMENTS"
_TOP = f"{Path(__file__).parents[2]}/"
_OURS = ("app/", "workers/")
_MIGRATION = "app/outbox/migration.py"  # of whichever test is the first of its server
_MYSQL, _POSTGRESQL = ("execute", "executemany"), ("execute", "executemany", "copy_expert")
_LITERAL = re.compile(r"'(?:[^'\\]|\\.|'')*'|\btest_[0-9a-f]{12}\b|-?\d+|%s|%\(\w+\)s")
_LIST = re.compile(r"\(\?(?:, ?\?)*\)(?:, ?\(\?(?:, ?\?)*\))*")
_REPEATED = re.compile(r"(?P<part>\S.{1,2000}?)(?:(?: | OR | UNION ALL |, ?)(?P=part))+(?=[ ),]|$)")


class Statements:
    """Those of the test that runs."""

    def __init__(self) -> None:
        self.of_test: set[str] = set()
        self._thread = threading.local()

    def note(self, statement: str | bytes) -> None:
        """Note a statement, unless it is of a test or one that the driver makes of a noted one."""
        if not getattr(self._thread, "is_within", False) and _is_ours():
            self.of_test.add(without_values(statement if isinstance(statement, str) else bytes(statement).decode()))

    def watch(self) -> None:
        """Note what any cursor of the drivers executes from now on."""
        for cursor_type, names in ((MySqlCursor, _MYSQL), (PgCursor, _POSTGRESQL)):
            for name in names:
                self._watch(cursor_type, name)

    def _watch(self, cursor_type: type, name: str) -> None:
        execute = getattr(cursor_type, name)

        def noting(cursor: object, statement: str | bytes, *rest: Any, **named: Any) -> Any:
            self.note(statement)
            is_within = getattr(self._thread, "is_within", False)
            self._thread.is_within = True
            try:
                return execute(cursor, statement, *rest, **named)
            finally:
                self._thread.is_within = is_within

        setattr(cursor_type, name, noting)


@cache
def without_values(statement: str) -> str:
    """Return the statement as it is for any number of values and rows."""
    text = _LITERAL.sub("?", re.sub(r"\s+", " ", statement))
    return _REPEATED.sub(r"\g<part>", _LIST.sub("(?)", text))


def _is_ours() -> bool:
    """Whether the nearest function of this tree is one of the product."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_TOP) and name != __file__ and not name.startswith(f"{_TOP}.venv/"):
            path = name.removeprefix(_TOP)
            return path.startswith(_OURS) and path != _MIGRATION
        frame = frame.f_back  # type: ignore[assignment]
    return False


_STATEMENTS = Statements()


def pytest_configure() -> None:
    _STATEMENTS.watch()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _STATEMENTS.of_test.clear()
    result = yield
    line = {"tier": tiers.tier(item), "id": item.nodeid, "statements": sorted(_STATEMENTS.of_test)}
    with Path(os.environ[VARIABLE]).open("a", encoding="utf-8") as file:
        file.write(f"{json.dumps(line)}\n")
    return result
