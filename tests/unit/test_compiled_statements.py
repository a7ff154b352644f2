"""Engines of the tests share what they have compiled, but only with those of their kind."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy.engine.interfaces import CacheStats

from app.outbox.engine.database import Database
from tests.support.compiled_statements import _kind


def test_a_statement_is_compiled_once_for_all_databases(tmp_path: Path) -> None:
    statement, found = sa.select(sa.literal(1).label(uuid4().hex)), []
    for number in range(2):
        with closing(Database(f"sqlite:///{tmp_path}/{number}.db")) as database, database.reading() as connection:
            answer = connection.execute(statement)
            found.append(answer.context.cache_hit)
            assert answer.scalar_one() == 1
    assert found == [CacheStats.CACHE_MISS, CacheStats.CACHE_HIT]


def test_dialects_are_of_a_kind_if_their_servers_are() -> None:
    def dialect(driver: str, version: tuple[int, ...], *, is_mariadb: bool = False) -> sa.engine.Dialect:
        made = sa.make_url(f"{driver}://").get_dialect()()
        made.server_version_info = version
        if is_mariadb:
            made.is_mariadb = True
        return made

    mysql = dialect("mysql+pymysql", (8, 0, 12))
    assert _kind(mysql) == _kind(dialect("mysql+pymysql", (8, 0, 12)))
    others = [
        dialect("mysql+pymysql", (8, 0, 12), is_mariadb=True),
        dialect("mysql+pymysql", (5, 7, 19)),
        dialect("postgresql+psycopg2", (8, 0, 12)),
    ]
    assert _kind(mysql) not in map(_kind, others)
