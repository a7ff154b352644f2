"""Deadlocks, as a database reports them, without a second writer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pymysql
import pytest
import sqlalchemy as sa

from app.outbox.engine.database import Database


def lost_once(database: Database, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have a deadlock end the next transaction at its commit, and the next single statement; what was begun."""
    lost: list[str] = []

    def losing(name: str, begin: Callable[[], AbstractContextManager[sa.Connection]]) -> Any:
        @contextmanager
        def begun() -> Iterator[sa.Connection]:
            first = name not in lost
            lost.append(name)
            deadlock = sa.exc.OperationalError("COMMIT", {}, pymysql.err.OperationalError(1213, "Deadlock found"))
            if first and name == "committing":  # it commits by itself
                raise deadlock
            with begin() as connection:
                yield connection
                if first:
                    raise deadlock

        return begun

    for name in ("writing", "committing"):
        monkeypatch.setattr(database, name, losing(name, getattr(database, name)))
    return lost
