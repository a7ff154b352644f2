"""An outbox on PostgreSQL whose encoding, or whose clients' encoding, is not UTF-8."""

from __future__ import annotations

import re

import pytest
import sqlalchemy as sa

from app.config.errors import BadSettings
from app.outbox import migration, tables
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from tests import services
from tests.support.builders import event, migrated

KEY = "日本/é\U0001f600.txt"


def stored_keys(database: Database) -> list[str]:
    with database.reading() as connection:
        return list(connection.execute(sa.select(tables.events.c.key).order_by(tables.events.c.seq)).scalars())


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_cannot_hold_every_key_is_not_migrated(
    postgres_server: services.Postgres, encoding: str
) -> None:
    name = f"encoded_{encoding.lower()}"
    database = Database(postgres_server.create_database(name, encoding=encoding))
    said = (
        f"BUCKETWIRE_DATABASE_URL: “{name}” is a database in {encoding}, which cannot hold every key; create one with"
    )
    with pytest.raises(BadSettings, match=re.escape(said)):
        migration.migrate(database)
    with database.reading() as connection:
        assert sa.inspect(connection).get_table_names() == []
    database.close()


def test_clients_speak_utf_8_whatever_the_default_of_the_database_is(postgres_server: services.Postgres) -> None:
    url = postgres_server.create_database("latin_clients")
    with postgres_server.connection() as connection, connection.cursor() as cursor:
        cursor.execute("ALTER DATABASE latin_clients SET client_encoding = 'LATIN1'")
    database = migrated(url)
    log = Log(database)
    for _ in range(3):  # the first ones by the step, the others in one round trip
        log.append([[event(KEY)]])
    log.append([[event(KEY) for _ in range(100)]])
    assert stored_keys(database) == [KEY] * 103
    database.close()


def test_a_database_in_sql_ascii_that_was_migrated_before_takes_every_key(
    postgres_server: services.Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migration, "check_encoding", lambda _connection: None)
    database = Database(postgres_server.create_database("migrated_before", encoding="SQL_ASCII"))
    migration.migrate(database)
    log = Log(database)
    for _ in range(3):
        log.append([[event(KEY)]])
    assert stored_keys(database) == [KEY] * 3
    database.close()
