"""Bring the outbox database to the schema that this code needs."""

from pathlib import Path

import alembic.command
import alembic.config
import sqlalchemy as sa

import migrations
from app.outbox import models as m
from app.outbox.database import Database


def migrate(database: Database, revision: str = "head", *, lanes: int = 16) -> None:
    """Upgrade to `revision`; a new log gets `lanes` lanes, which then never change.

    Safe to call from several machines at once on PostgreSQL and MySQL: one migrates, the others wait.
    """
    with database.engine.connect() as connection:
        _lock(connection)
        try:
            alembic.command.upgrade(_config(connection), revision)
            connection.commit()
            if sa.inspect(connection).has_table(m.log_head.name):
                _begin_log(connection, lanes)
        finally:
            _unlock(connection)


def downgrade(database: Database, revision: str) -> None:
    """Step back to `revision` (`base`: an empty database)."""
    with database.engine.connect() as connection:
        alembic.command.downgrade(_config(connection), revision)
        connection.commit()


def _config(connection: sa.Connection) -> alembic.config.Config:
    config = alembic.config.Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(Path(migrations.__file__).parent).replace("%", "%%"))
    return config


def _begin_log(connection: sa.Connection, lanes: int) -> None:
    if connection.execute(sa.select(m.log_head.c.id)).first() is None:
        connection.execute(m.log_head.insert().values(id=1, last_seq=0, lanes=lanes, version=1))
    connection.commit()


_LOCK = 0x6275636B6574  # "bucket": an advisory lock of our own


def _lock(connection: sa.Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT pg_advisory_lock(:lock)"), {"lock": _LOCK})
        connection.commit()
    elif connection.dialect.name in ("mysql", "mariadb"):
        connection.execute(sa.text("SELECT GET_LOCK('bucketwire.migrate', 120)"))
        connection.commit()


def _unlock(connection: sa.Connection) -> None:
    connection.rollback()
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT pg_advisory_unlock(:lock)"), {"lock": _LOCK})
        connection.commit()
    elif connection.dialect.name in ("mysql", "mariadb"):
        connection.execute(sa.text("SELECT RELEASE_LOCK('bucketwire.migrate')"))
        connection.commit()
