"""The clock by which leases are compared: the database's where it has one, whatever this host's clock shows."""

from __future__ import annotations

import time
from typing import Any

import pytest
import sqlalchemy as sa

from app.outbox.engine import clock as clock_module
from app.outbox.engine.clock import DatabaseClock, database_now
from app.outbox.engine.database import Database, DatabaseUnavailable, now_ms
from tests.services import until

HOUR = 3_600_000


@pytest.fixture
def asked(database: Database) -> list[str]:
    """The statements by which the database is asked for the time."""
    statements: list[str] = []

    def executed(_: object, cursor: object, statement: str, *rest: object) -> None:
        if "SYSDATE" in statement or "clock_timestamp" in statement:
            statements.append(statement)

    sa.event.listen(database._reader, "after_cursor_execute", executed)
    return statements


def test_a_database_server_s_clock_counts_and_not_the_host_s(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = DatabaseClock(database)
    before = now_ms()
    assert abs(clock() - before) < 60_000, "servers of the tests run on this machine"
    monkeypatch.setattr(clock_module, "now_ms", lambda: before + HOUR)
    has_server = database.dialect != "sqlite"
    assert (clock() < before + HOUR // 2) is has_server
    with database.reading() as connection:
        assert (database_now(connection) < before + HOUR // 2) is has_server


@pytest.mark.slow
def test_time_goes_on_between_two_questions_of_which_there_is_one_a_second(
    database: Database, asked: list[str]
) -> None:
    clock = DatabaseClock(database)
    began, first, times = time.monotonic(), clock(), [clock()]
    until(lambda: times.append(clock()) or clock() - first > 2_500, 30, what="2.5 s by this clock")
    assert time.monotonic() - began > 2.4, "it does not run ahead"
    assert times == sorted(times)
    if database.dialect != "sqlite":
        assert 2 <= len(asked) <= 2 + (time.monotonic() - began)


def test_a_measurement_asks_at_once(database: Database, asked: list[str]) -> None:
    clock = DatabaseClock(database)
    for _ in range(3):
        clock.measure()
    assert len(asked) == (0 if database.dialect == "sqlite" else 3)


def test_while_the_database_is_away_time_goes_on(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    if database.dialect == "sqlite":
        pytest.skip("SQLite has no server that could be away")
    never, known = DatabaseClock(database), DatabaseClock(database)
    first = known()

    def away(*_: Any) -> None:
        raise sa.exc.OperationalError("", {}, Exception("gone"))

    monkeypatch.setattr(database, "reading", away)
    until(lambda: known() - first > 1_500, 30, what="1.5 s by this clock")
    with pytest.raises(DatabaseUnavailable):
        known.measure()
    with pytest.raises(DatabaseUnavailable):
        never()


def test_a_slow_answer_does_not_spoil_what_a_quick_one_said(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    if database.dialect == "sqlite":
        pytest.skip("SQLite has no server that could be slow")
    clock = DatabaseClock(database)
    clock.measure()
    good = clock._reading
    read = clock_module._read

    def slow(connection: sa.Connection) -> int:
        shown = read(connection)
        time.sleep(0.5)  # on its way back
        return shown

    monkeypatch.setattr(clock_module, "_read", slow)
    clock.measure()
    assert clock._reading is good
    monkeypatch.setattr(clock_module, "_read", lambda connection: slow(connection) + HOUR * 1000)
    assert clock.measure() > now_ms() + HOUR // 2, "a server's clock that was set is followed"
