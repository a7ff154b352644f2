"""Outboxes for tests: migrated once for each server, emptied for each test.

A migration takes 0.1 to 0.6 s, and hundreds of tests need a log of their own. On MySQL and MariaDB the numbers of rows
go on from the last test's: to begin again at 1 takes MySQL a tenth of a second, for three tables.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack, closing, suppress
from functools import cache
from pathlib import Path
from typing import Any

import psycopg2
import pymysql

from app.outbox import tables
from app.outbox.engine.database import Database
from app.outbox.migration import migrate
from tests import services

NAME = "outbox_of_tests"
_SMALL = 500  # rows: InnoDB deletes so many sooner than it makes the table anew
_FEW_PAGES = 32 << 10  # bytes: PostgreSQL deletes from such a table sooner than it creates files for it and its indexes
_EMPTIED = sorted({table.name for table in tables.metadata.sorted_tables} - {"log_tail"})  # a row of the migration's
_SCHEMA_OF_POSTGRESQL = """
SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
UNION ALL SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace
UNION ALL SELECT tgname FROM pg_trigger WHERE NOT tgisinternal
UNION ALL SELECT unnest(setconfig) FROM pg_db_role_setting JOIN pg_database ON setdatabase = pg_database.oid
 WHERE datname = current_database()
"""
_SCHEMA_OF_MYSQL = """
SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()
UNION ALL SELECT trigger_name FROM information_schema.triggers WHERE trigger_schema = DATABASE()
"""
Schema = frozenset[tuple[str]]


class Outboxes:
    """For each server one database, handed out again and again; what the last test left in it is gone by then."""

    def __init__(self) -> None:
        self.migrations = 0
        self._made: dict[services.Server, Schema] = {}
        self._connections: dict[services.Server, ExitStack] = {}
        self._cursors: dict[services.Server, Any] = {}

    def on(self, server: services.Postgres | services.MySQL) -> str:
        """The SQLAlchemy URL of an outbox as a migration leaves it, but for the log's head, which `migrated` makes."""
        if server not in self._made or not self._emptied(server):
            server.drop_database(NAME)
            _make(server.create_database(NAME))
            self.migrations += 1
            self._made[server] = _schema(server, self._cursor(server))
        return _plain(server.url(NAME))

    def close(self) -> None:
        """Close the connections that are kept from test to test."""
        for connection in self._connections.values():
            connection.close()

    def _emptied(self, server: services.Postgres | services.MySQL) -> bool:
        try:
            return _empty(server, self._cursors[server], self._made[server])
        except (psycopg2.Error, pymysql.MySQLError):  # the server was restarted, or a test has ended all connections
            return _empty(server, self._cursor(server), self._made[server])

    def _cursor(self, server: services.Postgres | services.MySQL) -> Any:
        """A cursor of a new connection, in place of the one before."""
        if server in self._connections:
            with suppress(psycopg2.Error, pymysql.MySQLError):
                self._connections.pop(server).close()
        kept = self._connections[server] = ExitStack()
        cursor = self._cursors[server] = kept.enter_context(server.connection(NAME)).cursor()
        if isinstance(server, services.Postgres):
            cursor.execute("SET session_replication_role = replica")  # rows go in any order, without triggers
        else:
            cursor.execute("SET foreign_key_checks = 0")
            cursor.execute("SHOW VARIABLES LIKE 'information_schema_stats_expiry'")
            if cursor.fetchone():  # of MySQL, which would tell what it knew a day ago
                cursor.execute("SET information_schema_stats_expiry = 0")
        return cursor


def _plain(url: str) -> str:
    """A URL without TLS, which whole services speak to their databases: a handshake takes both sides 10 ms."""
    return f"{url}?sslmode=disable" if url.startswith("postgresql") else f"{url}&ssl_disabled=true"


def in_file(path: Path) -> str:
    """The same as a new SQLite file."""
    shutil.copy(_migrated_file(), path)
    return f"sqlite:///{path}"


@cache
def _migrated_file() -> Path:
    made = services.new_folder("outbox") / "outbox.db"
    _make(f"sqlite:///{made}")
    return made


def _make(url: str) -> None:
    with closing(Database(url)) as database:
        migrate(database)
        with database.writing() as connection:
            connection.execute(tables.log_head.delete())


def _schema(server: services.Postgres | services.MySQL, cursor: Any) -> Schema:
    """The names of tables, functions and triggers, and PostgreSQL's settings: what a test may change."""
    postgresql = isinstance(server, services.Postgres)
    cursor.execute(_SCHEMA_OF_POSTGRESQL if postgresql else _SCHEMA_OF_MYSQL)
    return frozenset(cursor.fetchall())


def _empty(server: services.Postgres | services.MySQL, cursor: Any, made: Schema) -> bool:
    """End all other connections and remove all rows; False if a test has changed the schema."""
    if isinstance(server, services.Postgres):
        cursor.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    else:
        server.end_connections(cursor, NAME)
    if _schema(server, cursor) != made:
        return False
    (_empty_postgresql if isinstance(server, services.Postgres) else _empty_mysql)(cursor)
    return True


def _empty_postgresql(cursor: Any) -> None:
    cursor.execute(
        "SELECT relname, relpages > 0 OR pg_relation_size(oid) > %s FROM pg_class"
        " WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND pg_relation_size(oid) > 0",
        (_FEW_PAGES,),
    )
    used = {name: is_large for name, is_large in cursor.fetchall() if name in _EMPTIED}
    if used:
        large = [name for name, is_large in used.items() if is_large]
        statements = [f"DELETE FROM {name}" for name in used if name not in large]
        statements += [f"TRUNCATE {', '.join(large)} CASCADE"] if large else []
        cursor.execute("; ".join(statements))
        cursor.execute("DELETE FROM pg_statistic WHERE starelid = ANY (%s::regclass[])", (list(used),))
        cursor.execute(
            "SELECT setval(format('%I.%I', schemaname, sequencename), start_value, false) FROM pg_sequences"
            " WHERE last_value IS NOT NULL"
        )


def _empty_mysql(cursor: Any) -> None:
    cursor.execute(" UNION ALL ".join(f"SELECT '{name}', COUNT(*) FROM `{name}`" for name in _EMPTIED))
    for name, rows in cursor.fetchall():
        if rows:
            cursor.execute(f"DELETE FROM `{name}`" if rows <= _SMALL else f"TRUNCATE `{name}`")
