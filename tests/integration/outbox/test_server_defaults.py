"""Whatever a server, a database or a role sets for new sessions, a statement of the outbox means the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
import sqlalchemy as sa

from app.outbox.engine.database import Database, DatabaseUnavailable
from app.outbox.log.append import Log
from tests.support import sample_events
from tests.support.builders import add_target, event, migrated
from tests.support.scripted_target import Courier, ScriptedTarget, assert_counters_balance
from workers.delivery.outcomes import DELIVERED

ANSI = "sql_mode = 'ANSI,PAD_CHAR_TO_FULL_LENGTH,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT'"
OF_MYSQL = [
    "sql_mode = ''",
    ANSI,
    "autocommit = 0",
    "transaction_isolation = 'SERIALIZABLE'",
    "transaction_isolation = 'READ-UNCOMMITTED'",
    "time_zone = '+05:30'",
    "completion_type = 'RELEASE'",
    "sql_safe_updates = 1",
    "sql_select_limit = 1",
    "max_execution_time = 1",
]
OF_MARIADB = [
    "sql_mode = 'ORACLE,EMPTY_STRING_IS_NULL'",
    "sql_mode = 'MSSQL,EMPTY_STRING_IS_NULL'",
    ANSI,
    "autocommit = 0",
]
OF_POSTGRESQL = [
    "standard_conforming_strings = off",
    "default_transaction_isolation = serializable",
    "statement_timeout = 1",
    "lock_timeout = 1",
    "synchronous_commit = off",
    "array_nulls = off",
    "datestyle = 'German'",
    "timezone = 'Asia/Kolkata'",
    "bytea_output = escape",
    "client_encoding = latin1",
]


@contextmanager
def chosen(url: str, setting: str) -> Iterator[None]:
    """Have the server set this for new sessions."""
    with closing(Database(url)) as database, database.engine.connect() as connection:
        execute = connection.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql
        if database.dialect == "postgresql":
            execute(f"ALTER DATABASE {database.url.database} SET {setting}")
            yield
            return
        name = setting.partition(" ")[0]
        before = execute(f"SELECT @@GLOBAL.{name}").scalar_one()
        execute(f"SET GLOBAL {setting}")
        try:
            yield
        finally:
            execute(f"SET GLOBAL {name} = %s", (before,))


@pytest.mark.parametrize(
    ("empty_url", "setting"),
    [
        *(("postgresql", setting) for setting in OF_POSTGRESQL),
        *(("mysql", setting) for setting in OF_MYSQL),
        *(("mariadb", setting) for setting in OF_MARIADB),
    ],
    indirect=["empty_url"],
)
def test_a_default_of_the_servers_changes_nothing(empty_url: str, setting: str) -> None:
    with chosen(empty_url, setting), closing(migrated(empty_url, partitions=2)) as database:
        target = add_target(database)
        events = [event(key) for key in [*sample_events.ODD_KEYS, "it's", 'a\\b"c', "a||b", " a ", "a "]]
        log = Log(database)
        for one in events:
            log.append([[one]])
        [receipt] = log.append([events[:10]])
        assert getattr(receipt, "repeated", 0) == 10
        courier = Courier(database, target, ScriptedTarget(lambda _: DELIVERED))
        courier.run()
        assert sorted(one.key for one in courier.scripted.got) == sorted(one.key for one in events)
        assert {one.version for one in courier.scripted.got} == {""}
        assert_counters_balance(database)


@pytest.mark.parametrize(
    ("empty_url", "setting"),
    [("postgresql", "default_transaction_read_only = on"), ("mysql", "transaction_read_only = 1")],
    indirect=["empty_url"],
)
def test_a_database_that_is_set_to_be_read_only_is_not_written_and_says_so(empty_url: str, setting: str) -> None:
    """So do hosted ones before their disk is full."""
    migrated(empty_url).close()
    with chosen(empty_url, setting), closing(Database(empty_url)) as database:
        with pytest.raises(DatabaseUnavailable, match=r"(?i)read.only transaction"):
            Log(database).append([[event()]])
        with database.reading() as connection:
            assert connection.execute(sa.text("SELECT count(*) FROM events")).scalar_one() == 0


def test_the_schema_may_be_chosen_by_the_url(postgres_database: str) -> None:
    with closing(Database(postgres_database)) as database, database.writing() as connection:
        connection.exec_driver_sql("CREATE SCHEMA elsewhere")
    with closing(migrated(f"{postgres_database}?options=-csearch_path%3Delsewhere")) as database:
        Log(database).append([[event()]])
        with database.reading() as connection:
            assert connection.exec_driver_sql("SELECT count(*) FROM elsewhere.events").scalar_one() == 1
