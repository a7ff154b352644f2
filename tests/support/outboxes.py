"""Outboxes for tests: migrated once for each server, emptied for each test.

A migration takes 0.1 to 0.6 s, and hundreds of tests need a log of their own.
"""

from __future__ import annotations

import shutil
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

from app.outbox import tables
from app.outbox.engine.database import Database
from app.outbox.engine.migration import migrate
from tests import services

NAME = "outbox_of_tests"
_SMALL = 500  # rows: InnoDB deletes so many sooner than it makes the table anew
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

    def on(self, server: services.Postgres | services.MySQL) -> str:
        """The SQLAlchemy URL of an outbox as a migration leaves it, but for the log's head, which `migrated` makes."""
        if server not in self._made or not _empty(server, self._made[server]):
            server.drop_database(NAME)
            _make(server.create_database(NAME))
            self.migrations += 1
            with server.connection(NAME) as connection, connection.cursor() as cursor:
                self._made[server] = _schema(server, cursor)
        return server.url(NAME)


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


def _empty(server: services.Postgres | services.MySQL, made: Schema) -> bool:
    """End all connections and remove all rows; False if a test has changed the schema."""
    with server.connection(NAME) as connection, connection.cursor() as cursor:
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
        "SELECT relname FROM pg_class"
        " WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND pg_relation_size(oid) > 0"
    )
    used = [name for (name,) in cursor.fetchall() if name in _EMPTIED]
    if used:
        cursor.execute(f"TRUNCATE {', '.join(used)} RESTART IDENTITY CASCADE")
        cursor.execute("DELETE FROM pg_statistic WHERE starelid = ANY (%s::regclass[])", (used,))


def _empty_mysql(cursor: Any) -> None:
    cursor.execute("SET foreign_key_checks = 0")
    for name in _EMPTIED:
        cursor.execute(f"SELECT COUNT(*) FROM `{name}`")
        [rows] = cursor.fetchone()
        if rows:
            cursor.execute(f"DELETE FROM `{name}`" if rows <= _SMALL else f"TRUNCATE `{name}`")
    cursor.execute("SHOW VARIABLES LIKE 'information_schema_stats_expiry'")
    if cursor.fetchone():  # of MySQL, which would tell what it knew a day ago
        cursor.execute("SET information_schema_stats_expiry = 0")
    cursor.execute(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() AND auto_increment > 1"
    )
    for (name,) in cursor.fetchall():
        cursor.execute(f"ALTER TABLE `{name}` AUTO_INCREMENT = 1")
