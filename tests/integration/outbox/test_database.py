"""The outbox database as it goes away and comes back."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import sqlalchemy as sa

from app.outbox import tables
from app.outbox.engine.database import Database, DatabaseUnavailable, refuses_value
from tests import services
from tests.services import until
from tests.support.builders import add_target

_FACES: dict[str, Callable[[Database], Any]] = {
    "reading": Database.reading,
    "writing": Database.writing,
    "snapshot": Database.snapshot,
}


_NUMBER = {"postgresql": "SELECT pg_backend_pid()", "mysql": "SELECT connection_id()"}
_CIPHER = {
    "postgresql": "SELECT cipher FROM pg_stat_ssl WHERE pid = pg_backend_pid()",
    "mysql": "SHOW SESSION STATUS LIKE 'Ssl_cipher'",
}
_END = {"postgresql": "SELECT pg_terminate_backend(:number, 5000)", "mysql": "KILL :number"}


def cut(database: Database, connection: sa.Connection, killer: Database) -> None:
    """Have the server end a connection, as its own end would."""
    found = connection.execute(sa.text(_NUMBER[database.dialect])).scalar_one()
    with killer.writing() as other:
        other.execute(sa.text(_END[database.dialect]), {"number": found})


@pytest.mark.parametrize("empty_url", ["postgresql", "mysql", "mariadb"], indirect=True)
@pytest.mark.parametrize("face", _FACES)
def test_connections_that_break_in_use_are_an_error_of_one_kind_and_take_no_place_in_the_pool(
    empty_url: str, face: str
) -> None:
    assert _cipher(empty_url)  # over TLS the drivers tell a lost connection in other words
    database, opened, killer = Database(empty_url, pool_size=1), _FACES[face], Database(empty_url)
    for _ in range(23):  # the pool gives out 21 at a time
        until(lambda: _answers(opened(database)), 30)
        with suppress(*DatabaseUnavailable), opened(database) as connection:
            cut(database, connection, killer)
    until(lambda: _answers(opened(database)), 30)
    database.close()
    killer.close()


def _answers(connecting: Any) -> bool:
    """Whether it does; the first use after a connection was cut may be the one that finds out."""
    try:
        with connecting as connection:
            return bool(connection.execute(sa.text("SELECT 1")).scalar_one())
    except DatabaseUnavailable:
        return False


@pytest.mark.parametrize("empty_url", ["postgresql", "mysql", "mariadb"], indirect=True)
@pytest.mark.parametrize("first", ["reading", "writing"])
def test_connections_that_were_lost_together_cause_one_error(empty_url: str, first: str) -> None:
    database, other = Database(empty_url), Database(empty_url)
    with database.reading() as reader, database.writing() as writer:
        numbers = [
            reader.execute(sa.text(_NUMBER[database.dialect])),
            writer.execute(sa.text(_NUMBER[database.dialect])),
        ]
        lost = [result.scalar_one() for result in numbers]
    with other.writing() as connection:
        for number in lost:
            connection.execute(sa.text(_END[database.dialect]), {"number": number})
    assert not _answers(_FACES[first](database))
    assert all(_answers(opened(database)) for opened in _FACES.values())
    database.close()
    other.close()


@pytest.mark.parametrize("empty_url", ["postgresql", "mysql"], indirect=True)
@pytest.mark.parametrize("face", _FACES)
def test_connections_that_are_lost_as_soon_as_they_are_opened_are_an_error_of_the_database(
    empty_url: str, face: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(connection: Any) -> None:
        asked.append(connection)
        raise dialect.loaded_dbapi.OperationalError("server closed the connection unexpectedly")

    database, asked = Database(empty_url), list[Any]()
    dialect: Any = database.engine.dialect
    assert _answers(_FACES[face](database))
    with monkeypatch.context() as patch:
        patch.setattr("app.outbox.engine.database.outbox_state.doubts", lambda _: True)
        for engine in (database.engine, database._reader):
            patch.setattr(engine.dialect, "do_ping", lose)
        with pytest.raises(DatabaseUnavailable, match="closed the connection"), _FACES[face](database):
            pass
    assert len(asked) == 2
    assert all(_answers(opened(database)) for opened in _FACES.values())
    database.close()


@pytest.mark.parametrize("outbox_url", ["mysql", "mariadb"], indirect=True)
def test_a_value_that_does_not_fit_is_refused_and_not_cut_whatever_the_servers_sql_mode(database: Database) -> None:
    with database.engine.connect() as connection:
        before = connection.exec_driver_sql("SELECT @@GLOBAL.sql_mode").scalar_one()
        connection.exec_driver_sql("SET GLOBAL sql_mode=''")
        try:
            again = Database(database.url.render_as_string(hide_password=False))
            with pytest.raises(sa.exc.DBAPIError) as refused, again.writing() as writer:
                writer.execute(tables.buckets.insert().values(name="x" * 256, created_at=1))
            again.close()
        finally:
            connection.exec_driver_sql("SET GLOBAL sql_mode=%s", (before,))
    assert refuses_value(refused.value)


@pytest.mark.parametrize("empty_url", ["mysql", "mariadb"], indirect=True)
def test_tls_without_verification_reads_no_authorities(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> None:
        raise AssertionError("the system's authorities were read")

    monkeypatch.setattr("ssl.SSLContext.load_default_certs", read)
    assert _cipher(empty_url)


@pytest.mark.parametrize("empty_url", ["mysql", "mariadb"], indirect=True)
def test_tls_options_in_the_url_are_the_drivers(empty_url: str, certificates: services.Certificates) -> None:
    assert _cipher(f"{empty_url}&ssl_ca={certificates.ca}&ssl_check_hostname=false")
    with pytest.raises(DatabaseUnavailable, match="certificate verify failed"):
        _cipher(f"{empty_url}&ssl_ca={certificates.other_ca}&ssl_check_hostname=false")


def _cipher(url: str) -> str:
    """How the connection is encrypted; empty, where it is not."""
    with closing(Database(url)) as opened, opened.reading() as connection:
        return str(connection.exec_driver_sql(_CIPHER[opened.dialect]).all()[0][-1] or "")


def test_several_may_open_a_new_file_at_once(tmp_path: Path) -> None:
    """SQLite refuses one of eight in every tenth file."""
    all_of_them = Barrier(8)

    def look(file: Path) -> None:
        all_of_them.wait(30)
        with closing(Database(f"sqlite:///{file}")) as database, database.reading() as connection:
            connection.execute(sa.text("SELECT name FROM sqlite_master"))

    with ThreadPoolExecutor(8) as pool:
        for number in range(40):
            list(pool.map(look, [tmp_path / f"{number}.db"] * 8))


def test_a_snapshot_sees_one_moment(database: Database) -> None:
    with database.snapshot() as connection:
        before = _targets(connection)
        add_target(database)
        assert _targets(connection) == before == 0
    with database.snapshot() as connection:
        assert _targets(connection) == 1


def _targets(connection: sa.Connection) -> int:
    return int(connection.execute(sa.text("SELECT count(*) FROM targets")).scalar_one())


def test_a_connection_whose_server_does_not_answer_is_given_up_and_so_are_those_opened_before_it(
    postgres_server: services.Postgres, postgres_database: str
) -> None:
    with services.proxy(postgres_server.port) as wire:
        url = postgres_database.replace(f":{postgres_server.port}/", f":{wire.port}/")
        database = Database(url, patience=1)
        with database.reading() as one, database.reading() as other:
            assert one.execute(sa.text("SELECT 1")).scalar_one() == other.execute(sa.text("SELECT 1")).scalar_one() == 1
        with database.writing() as connection:
            connection.execute(sa.text("SELECT 1"))
        wire.halve()
        began = time.monotonic()
        assert not _answers(database.reading())
        assert time.monotonic() - began >= 1
        assert _answers(database.reading())  # no connection of before is tried again
        assert _answers(database.writing())
        database.close()


def test_a_statement_may_take_any_time_where_nobody_waits(postgres_database: str) -> None:
    database = Database(postgres_database, patience=None)
    with database.reading() as connection:
        connection.execute(sa.text("SELECT pg_sleep(2.5)"))
    database.close()
