"""The console's sessions, as several API processes share them, on each kind of database."""

from __future__ import annotations

from threading import Barrier, Thread

import pytest
import sqlalchemy as sa

from app.config.settings import hash_token
from app.outbox import tables, tokens
from app.outbox.engine.database import Database
from app.outbox.policies import SESSIONS
from app.outbox.tokens import Sessions, Tokens
from tests.support import databases
from tests.support.tuning import tune

pytestmark = databases.ONE

ALICE, BOB = hash_token("alice"), hash_token("bob")
HOUR = 3600


def rows(database: Database) -> int:
    with database.reading() as connection:
        return int(connection.execute(sa.select(sa.func.count()).select_from(tables.console_sessions)).scalar_one())


@databases.TWO
def test_a_session_is_active_at_every_process_until_one_ends_it(database: Database) -> None:
    here, there = Sessions(database), Sessions(database)
    here.begin("one", ALICE, HOUR)
    here.begin("two", ALICE, HOUR)
    assert [there.is_active(number) for number in ("one", "two", "three", "")] == [True, True, False, False]
    there.end("one")
    there.end("one")
    there.end("three")
    assert [here.is_active(number) for number in ("one", "two")] == [False, True]


def test_a_revoked_token_ends_its_sessions_and_no_others(database: Database) -> None:
    stored, opened = Tokens(database), Sessions(database)
    for name in ("lent", "kept"):
        opened.begin(name, hash_token(stored.create(name, ["admin"])), HOUR)
    Tokens(database).revoke("lent")
    assert [opened.is_active(name) for name in ("lent", "kept")] == [False, True]


@databases.TWO
def test_no_row_tells_the_number_of_a_cookie(database: Database) -> None:
    Sessions(database).begin("number", ALICE, HOUR)
    with database.reading() as connection:
        [row] = connection.execute(sa.select(tables.console_sessions)).all()
    assert "number" not in str(row)
    assert not Sessions(database).is_active(row.id)


@databases.TWO
def test_sessions_that_have_expired_are_removed_by_the_next_that_begins(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(monkeypatch, tokens, "SESSIONS", batch_expired=5)
    opened = Sessions(database)
    for number in range(4):
        opened.begin(f"kept{number}", BOB, HOUR)
    with database.writing() as connection:
        expired = [{"id": hash_token(f"{number}"), "subject": ALICE, "ends_at": 1 + number} for number in range(12)]
        connection.execute(tables.console_sessions.insert(), expired)
    for left in (12, 8, 7, 8):  # one more each time, and five less as long as there are so many
        opened.begin(f"new{left}{rows(database)}", BOB, HOUR)
        assert rows(database) == left
    assert all(opened.is_active(f"kept{number}") for number in range(4))


def test_whoever_signs_in_for_ever_has_the_last_sessions_only(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(monkeypatch, tokens, "SESSIONS", max_sessions=3)
    assert SESSIONS.max_sessions >= 20
    opened = Sessions(database)
    opened.begin("another", BOB, HOUR)
    for number in range(5):
        opened.begin(f"{number}", ALICE, HOUR + number)  # in this order also on a clock that stands still
    assert rows(database) == 4
    assert [opened.is_active(f"{number}") for number in range(5)] == [False, False, True, True, True]
    assert opened.is_active("another")


@databases.ALL
def test_sessions_that_begin_and_end_at_once_do_not_hinder_each_other(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(monkeypatch, tokens, "SESSIONS", max_sessions=2)
    with database.writing() as connection:
        expired = [{"id": hash_token(f"{number}"), "subject": BOB, "ends_at": number} for number in range(20)]
        connection.execute(tables.console_sessions.insert(), expired)
    token = Tokens(database).create("lent", ["admin"])
    ready, wrong = Barrier(5), list[BaseException]()

    def act(number: int) -> None:
        opened = Sessions(database)
        ready.wait(60)
        try:
            for step in range(5):
                if number == 4:
                    Tokens(database).revoke("lent") if step == 2 else None
                else:
                    opened.begin(f"{number}.{step}", hash_token(token) if number % 2 else ALICE, HOUR)
                    opened.end(f"{number}.{step - 1}")
        except BaseException as error:  # noqa: BLE001 - shown by the test
            wrong.append(error)

    threads = [Thread(target=act, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert wrong == []
    assert not any(Sessions(database).is_active(f"{number}.{step}") for number in range(4) for step in range(4))
