"""Migrate the outbox database to the schema that this code needs."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import alembic.command
import alembic.config
import sqlalchemy as sa

import migrations
from app.outbox import log_head, schema_version, tables
from app.outbox.engine.database import Database
from app.outbox.engine.many_rows import after_deadlocks
from app.outbox.schema_version import SchemaRefused, check_encoding


def migrate(database: Database, revision: str = "head", *, partitions: int = 16) -> None:
    """Upgrade to `revision`. A new log gets `partitions` partitions, and this number never changes afterwards.

    A later version's schema with which this code works stays as it is. Raises `BadSettings` if the database's encoding
    is not UTF-8, and `SchemaRefused` for a later schema that this code cannot use. On PostgreSQL and MySQL it is safe
    to call from several machines at once: one migrates, the others wait for two minutes. For as long it waits for a
    lock on a table, a few seconds at a time: others who want that table wait behind it.
    """
    with database.engine.connect() as connection, _locked(connection):
        check_encoding(connection)
        state = schema_version.check_over(connection)
        if state.is_refused:
            raise SchemaRefused(f"the outbox database {state}")
        if state.note:
            return
        after_deadlocks(database, partial(_upgrade, connection, revision), _PATIENCE_SECONDS)
        if sa.inspect(connection).has_table(tables.log_head.name):
            log_head.create(connection, partitions)
            connection.commit()


def _upgrade(connection: sa.Connection, revision: str) -> None:
    """Upgrade; what was upgraded before an error is not made again by another call."""
    try:
        alembic.command.upgrade(_config(connection), revision)
        connection.commit()
    except BaseException:
        connection.rollback()
        raise


def downgrade(database: Database, revision: str) -> None:
    """Downgrade to `revision` (`base`: an empty database). Raises `SchemaRefused` if this code does not know how."""
    present = schema_version.current(database)
    if present is not None and schema_version.is_later(present):
        text = f"the outbox database is at revision {present}, which this version does not know"
        raise SchemaRefused(f"{text}; downgrade it with the version that migrated it")
    with database.engine.connect() as connection:
        alembic.command.downgrade(_config(connection), revision)
        connection.commit()


def _config(connection: sa.Connection) -> alembic.config.Config:
    config = alembic.config.Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(Path(migrations.__file__).parent).replace("%", "%%"))
    return config


_KEY = 0x6275636B6574  # "bucket" in ASCII: the key of our advisory lock
_PATIENCE_SECONDS = 120
_MYSQL = (
    f"SELECT GET_LOCK('bucketwire.migrate', {_PATIENCE_SECONDS})",
    "SELECT RELEASE_LOCK('bucketwire.migrate')",
)
_LOCKS = {
    "postgresql": (
        f"SELECT pg_advisory_lock({_KEY}) FROM set_config('lock_timeout', '{_PATIENCE_SECONDS}s', true)",  # noqa: S608 - numbers
        f"SELECT pg_advisory_unlock({_KEY})",
    ),
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
}


@contextmanager
def _locked(connection: sa.Connection) -> Iterator[None]:
    """Prevent concurrent migrations during the block; at its end, roll back an open transaction."""
    take, give = _LOCKS.get(connection.dialect.name, ("", ""))
    _say(connection, take)
    try:
        yield
    finally:
        connection.rollback()
        _say(connection, give)


def _say(connection: sa.Connection, statement: str) -> None:
    if statement:
        connection.execute(sa.text(statement))
        connection.commit()
