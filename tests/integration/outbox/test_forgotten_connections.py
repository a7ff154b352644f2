"""Connections that the network between has forgotten: the database keeps their transactions, and nobody ends them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from time import sleep

import pytest
import sqlalchemy as sa

from app.outbox import log_head
from app.outbox.engine import mysql
from app.outbox.engine.database import Database, DatabaseUnavailable
from app.outbox.engine.many_rows import lock_cursors, lock_tail
from app.outbox.log import group_commit
from app.outbox.log.append import Log
from app.outbox.log.group_commit import GroupCommit
from app.outbox.policies import APPEND, DATABASE
from tests import services
from tests.services import until
from tests.support.builders import add_target, event, registry
from tests.support.tuning import tune

SERVERS = ("postgresql", "mysql", "mariadb")
SILENCE = 5  # seconds
SOON = 15  # seconds after the network is back


@pytest.fixture
def wire(database: Database) -> Iterator[services.Proxy]:
    """The network between a machine that will be gone and the database's server."""
    assert database.url.port is not None
    with services.proxy(database.url.port) as made:
        yield made


def far_database(database: Database, wire: services.Proxy) -> Database:
    """The same outbox over this network."""
    return Database(database.url.set(port=wire.port).render_as_string(hide_password=False), patience=None)


@pytest.mark.parametrize("outbox_url", SERVERS, indirect=True)
def test_what_a_forgotten_connection_has_locked_is_free_soon_after_the_silence(
    database: Database, wire: services.Proxy
) -> None:
    target = add_target(database)
    gone = far_database(database, wire)
    head, tail, cursors = (gone.engine.connect() for _ in range(3))
    log_head.reserve(head, 1)
    lock_tail(tail)
    assert lock_cursors(cursors, registry(database).target(target).row_id)
    with ThreadPoolExecutor(3) as pool:
        # On PostgreSQL the second gets the turn of the first one, and would get the lock when its client is long gone.
        waiting = [pool.submit(_succeeds, lambda: _take_the_head(gone)) for _ in range(3)]
        sleep(0.5)
        assert not any(one.done() for one in waiting)
        wire.swallow()
        sleep(SILENCE)
        wire.heal()
        try:
            until(lambda: _succeeds(lambda: Log(database).append([[event()]])), SOON)
            until(lambda: _succeeds(lambda: registry(database).remove(target, force=True)), SOON)
        finally:
            wire.close()
    for connection in (head, tail, cursors):
        connection.invalidate()
    gone.close()


@pytest.mark.parametrize("outbox_url", SERVERS, indirect=True)
@pytest.mark.parametrize(
    "count",
    [
        pytest.param(
            1,
            marks=pytest.mark.nightly(
                "many events, whose rows arrive in parts; forgotten connections that hold each of the locks"
            ),
        ),
        10,
    ],
)
def test_events_of_which_a_part_has_arrived_hold_nobody_up(
    database: Database, wire: services.Proxy, count: int
) -> None:
    """PostgreSQL gets many by COPY, for which none of its time limits is."""
    add_target(database)
    gone = far_database(database, wire)
    whole = [event(key=f"{number}-{'k' * 1000}") for number in range(count)]
    last = event()
    last = last._replace(record=f'{{"filler":"{"f" * 500_000}","end":"of-the-last",{last.record[1:]}')
    wire.hold_next(b"of-the-last")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(_succeeds, lambda: Log(gone).append([[*whole, last]]))
        assert wire.held.wait(30)
        try:
            until(lambda: _succeeds(lambda: Log(database).append([[event()]])), SOON)
        finally:
            wire.release()
            wire.close()
    gone.close()


def test_the_configured_times_add_up_to_less_than_it_takes_at_most() -> None:
    assert 2 * DATABASE.lock_seconds < DATABASE.idle_transaction_seconds
    assert DATABASE.lock_seconds + DATABASE.idle_transaction_seconds < SOON
    assert DATABASE.lock_seconds < APPEND.statement_seconds < SOON


@pytest.mark.parametrize("outbox_url", SERVERS, indirect=True)
def test_a_login_without_an_answer_takes_no_longer_than_a_connection(database: Database, wire: services.Proxy) -> None:
    url = database.url.set(port=wire.port).render_as_string(hide_password=False)
    wire.swallow()
    with ThreadPoolExecutor(1) as pool, closing(Database(url, patience=600)) as behind:
        login = pool.submit(_succeeds, lambda: _last_seq(behind))
        try:
            until(login.done, SOON)
        finally:
            wire.close()
        assert not login.result()


@pytest.mark.parametrize("outbox_url", SERVERS, indirect=True)
def test_posts_are_recorded_soon_after_a_silence_whatever_time_other_statements_have(
    database: Database, wire: services.Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(monkeypatch, group_commit, "APPEND", statement_seconds=1)
    add_target(database)
    url = database.url.set(port=wire.port).render_as_string(hide_password=False)
    with closing(Database(url, patience=600)) as behind:
        commits = GroupCommit(behind)

        def is_recorded() -> bool:
            try:
                return _succeeds(lambda: commits.append([event()], 0.5))
            except TimeoutError:
                return False

        until(is_recorded, SOON)
        wire.swallow()
        assert not is_recorded()
        wire.heal()
        until(is_recorded, SOON)


@pytest.mark.parametrize("outbox_url", SERVERS, indirect=True)
def test_a_transaction_that_was_ended_meanwhile_is_an_error_and_the_next_one_is_good(database: Database) -> None:
    """As in a process that was stopped for longer than the server waits."""
    limit = {"postgresql": "idle_in_transaction_session_timeout = 500", "mysql": "wait_timeout = 1"}[database.dialect]
    for last_words in (log_head.lock, lambda _: None):
        last_seq = _last_seq(database)
        assert not _succeeds(lambda: _stop_within(database, limit, last_words))  # noqa: B023 - called at once
        assert _last_seq(database) == last_seq
        Log(database).append([[event()]])


def _stop_within(database: Database, limit: str, last_words: Callable[[sa.Connection], object]) -> None:
    with database.writing() as connection:
        log_head.reserve(connection, 1)
        connection.exec_driver_sql(f"SET SESSION {limit}")
        sleep(2)
        last_words(connection)


def _last_seq(database: Database) -> int:
    with database.reading() as connection:
        return log_head.read(connection).last_seq


@pytest.mark.parametrize("outbox_url", ["mysql", "mariadb"], indirect=True)
def test_a_connection_that_the_server_may_have_ended_is_not_given_out(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def number() -> int:
        with database.writing() as connection:
            return int(connection.exec_driver_sql("SELECT connection_id()").scalar_one())

    first = number()
    assert number() == first
    monkeypatch.setattr(mysql, "DATABASE", mysql.DATABASE._replace(idle_transaction_seconds=0))
    assert number() != first


def _take_the_head(database: Database) -> None:
    with database.writing() as connection:
        log_head.lock(connection)


def _succeeds(act: Callable[[], object]) -> bool:
    try:
        act()
    except DatabaseUnavailable:
        return False
    return True
