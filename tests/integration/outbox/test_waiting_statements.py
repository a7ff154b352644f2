"""Statements that get no answer in time, and connections that are refused, while the database works."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg2
import pymysql
import pytest
import sqlalchemy as sa

from app.outbox import log_head
from app.outbox.engine.database import Database, DatabaseUnavailable
from app.outbox.engine.db_errors import OutboxState, is_refusal, outbox_state
from app.outbox.policies import APPEND, DATABASE, HEARTBEATS, REFUSALS
from tests import services

SERVERS = ("postgresql", "mysql", "mariadb")
ON_SERVERS = pytest.mark.parametrize("outbox_url", SERVERS, indirect=True)


@pytest.fixture(autouse=True)
def logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What a process of the service logs of its database, from its start on."""
    outbox_state._begin()
    monkeypatch.setattr(outbox_state, "_is_watching", True)
    caplog.set_level(logging.INFO, "bucketwire.outbox")
    return caplog


def own_id(connection: sa.Connection) -> int:
    """What the server calls this connection."""
    is_postgresql = connection.dialect.name == "postgresql"
    return int(
        connection.exec_driver_sql(f"SELECT {'pg_backend_pid' if is_postgresql else 'connection_id'}()").scalar_one()
    )


def idle_ids(database: Database) -> set[int]:
    """The connections that a pool has kept."""
    with database.reading() as reading, database.writing() as writing:
        return {own_id(reading), own_id(writing)}


@contextmanager
def held_head(database: Database) -> Iterator[None]:
    """The log's head, locked by another process."""
    with closing(Database(database.url.render_as_string(hide_password=False))) as other, other.writing() as connection:
        log_head.reserve(connection, 1)
        yield


def reserve(database: Database) -> None:
    with database.writing() as connection:
        log_head.reserve(connection, 1)


@ON_SERVERS
def test_a_statement_that_waits_for_a_lock_costs_no_other_connection(
    database: Database, logged: pytest.LogCaptureFixture
) -> None:
    kept = idle_ids(database)
    with closing(Database(database.url.render_as_string(hide_password=False))) as intake:
        of_intake = idle_ids(intake)
        with held_head(database), pytest.raises(DatabaseUnavailable), database.answering_within(0.3):
            reserve(database)
        assert idle_ids(intake) == of_intake
        with database.reading() as reading:
            assert own_id(reading) in kept
    [told] = logged.messages
    assert told.startswith("the outbox database answers, but not to a statement within 0.3 s")


@ON_SERVERS
@pytest.mark.parametrize("patience", [HEARTBEATS.patience_seconds])
def test_a_wait_for_a_lock_ends_by_the_servers_answer_however_short_the_patience(
    database: Database, logged: pytest.LogCaptureFixture, patience: float
) -> None:
    with closing(Database(database.url.render_as_string(hide_password=False), pool_size=1, patience=patience)) as aside:
        kept = idle_ids(aside)
        with held_head(database), pytest.raises(DatabaseUnavailable):
            reserve(aside)
        assert idle_ids(aside) == kept, "no connection was cut"
    assert logged.messages == []


def test_every_patience_but_that_of_a_post_is_longer_than_a_wait_for_locks() -> None:
    for patience in (None, HEARTBEATS.patience_seconds, REFUSALS.statement_seconds, DATABASE.statement_seconds):
        assert 2 * DATABASE.lock_seconds_within(patience) < (patience or 60)  # PostgreSQL waits twice
    for seconds in (REFUSALS.statement_seconds, APPEND.statement_seconds, DATABASE.idle_transaction_seconds):
        assert 2 * DATABASE.lock_seconds < seconds, "on connections of others"


@pytest.mark.parametrize("outbox_url", SERVERS, indirect=True)
def test_connections_that_have_lost_their_server_are_all_replaced_after_one_without_an_answer(
    database: Database, logged: pytest.LogCaptureFixture
) -> None:
    assert database.url.port is not None
    with services.proxy(database.url.port) as wire:
        url = database.url.set(port=wire.port).render_as_string(hide_password=False)
        with closing(Database(url, patience=0.5)) as far:
            before = idle_ids(far)
            wire.swallow()
            with pytest.raises(DatabaseUnavailable), far.reading() as reading:
                own_id(reading)
            assert logged.messages == [], "it may wait for a lock"
            wire.heal()
            with far.writing() as writing:
                assert own_id(writing) not in before
            assert not idle_ids(far) & before
    assert logged.messages == [
        "the outbox database is unavailable: no answer within 1 s", "the outbox database is available again",
    ]  # fmt: skip


def test_a_refused_connection_is_no_outage_while_others_are_open(
    postgres_server: services.Postgres, logged: pytest.LogCaptureFixture
) -> None:
    name = "refuses_new_connections"
    url = postgres_server.create_database(name)

    def allow(word: str) -> None:
        with postgres_server.connection() as connection, connection.cursor() as cursor:
            cursor.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS {word}")

    with closing(Database(url)) as database, closing(Database(url)) as another:
        with database.reading() as reading:
            own_id(reading)
        allow("false")
        for _ in range(2):
            with pytest.raises(DatabaseUnavailable), another.reading():
                pass
        [told] = logged.messages
        assert told.startswith("the outbox database refuses a connection, others are open: ")
        with database.reading() as reading:
            own_id(reading)
        full = sa.exc.OperationalError("INSERT", None, pymysql.err.OperationalError(1114, "The table is full"))
        outbox_state.failed(full)
        assert logged.messages[1:] == ["the outbox database is full: (1114, 'The table is full')"]
        database.close()
        with pytest.raises(DatabaseUnavailable), another.reading():
            pass
        assert logged.messages[2].startswith("the outbox database is unavailable: ")
        allow("true")
        with another.reading() as reading:
            own_id(reading)
    assert logged.messages[3:] == ["the outbox database is available again"]


def test_a_database_that_is_full_is_said_also_of_one_that_counts_as_lost(logged: pytest.LogCaptureFixture) -> None:
    state = OutboxState()
    state.watch()
    state.lost(None)
    state.failed(sa.exc.OperationalError("INSERT", None, pymysql.err.OperationalError(1114, "The table is full")))
    assert [record.levelname for record in logged.records] == ["WARNING", "ERROR"]


def test_what_a_server_answers_is_known_from_what_nobody_answers(postgres_server: services.Postgres) -> None:
    for dsn in (postgres_server.dsn("nowhere"), postgres_server.dsn().replace(services.PASSWORD, "wrong")):
        with pytest.raises(psycopg2.OperationalError) as refused:
            psycopg2.connect(dsn)
        assert is_refusal(refused.value), refused.value
    for place in (f"host={services.LOOPBACK} port={services.free_port()}", "host=/nowhere", "host=no-such.invalid"):
        with pytest.raises(psycopg2.OperationalError) as unanswered:
            psycopg2.connect(f"{place} user=x connect_timeout=2")
        assert not is_refusal(unanswered.value), unanswered.value
    answers = {1040: True, 1203: True, 3118: True, 2002: False, 2003: False, 2013: False}
    assert {code: is_refusal(pymysql.err.OperationalError(code, "x")) for code in answers} == answers
