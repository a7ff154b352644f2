"""A database without room: it is said to be full, and no event is taken for the cause."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import sqlalchemy as sa

from app.events.model import Event
from app.outbox.engine.database import Database, DatabaseUnavailable
from app.outbox.engine.db_errors import is_full
from app.outbox.log.group_commit import GroupCommit
from app.outbox.log.spool import Spool, SpoolFeeder
from tests import services
from tests.services.sql import MariaDB
from tests.support.builders import event, migrated

SPACE = ["--innodb-file-per-table=OFF", "--innodb-data-file-path=ibdata1:12M:autoextend:max:48M"]


@dataclass(eq=False)
class SmallMariaDB(MariaDB):
    """A MariaDB with one file for all tables, of at most 48 MiB. (MySQL 8.0.12 crashes when such a file is full.)"""

    def argv(self) -> Sequence[str | Path]:
        return [*super().argv(), *SPACE]


def sqlite(stack: ExitStack, folder: Path, _request: pytest.FixtureRequest) -> Database:
    database = migrated(f"sqlite:///{folder}/outbox.db")
    stack.callback(database.close)
    database.close()  # new connections have the limit
    sa.event.listen(database.engine, "connect", lambda raw, _: raw.execute("PRAGMA max_page_count = 400"))
    return database


def postgresql(stack: ExitStack, _folder: Path, _request: pytest.FixtureRequest) -> Database:
    """On a server of its own: it may still have pages of files that go with the disk, and no checkpoint succeeds."""
    server = stack.enter_context(services.postgres())
    disk = server.folder / "small"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=20M", "tmpfs", disk], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("this user may not mount a small disk")
    stack.callback(subprocess.run, ["umount", "--lazy", disk], check=True)
    if user := server.user():
        shutil.chown(disk, user, user)
    with server.connection() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLESPACE small LOCATION '{disk}'")
        cursor.execute("CREATE DATABASE full_disk TABLESPACE small")
    database = migrated(server.url("full_disk"))
    stack.callback(database.close)
    return database


def mariadb(stack: ExitStack, _folder: Path, _request: pytest.FixtureRequest) -> Database:
    server = SmallMariaDB()
    stack.enter_context(server.start())
    database = migrated(server.create_database("outbox"))
    stack.callback(database.close)
    return database


Make = Callable[[ExitStack, Path, pytest.FixtureRequest], Database]


@pytest.fixture(params=[sqlite, postgresql, mariadb])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """An outbox with room for some megabytes."""
    make: Make = request.param
    with ExitStack() as stack:
        yield make(stack, tmp_path, request)


def test_a_full_database_says_so_and_quarantines_nothing(small: Database, tmp_path: Path) -> None:
    with pytest.raises(DatabaseUnavailable) as caught:
        _fill(small)
    assert is_full(caught.value)
    spool = Spool(tmp_path / "spool")
    spool.append([_large() for _ in range(40)])  # MariaDB 10.11.19 has room for one more after it refused one
    with pytest.raises(DatabaseUnavailable):
        SpoolFeeder(spool, small).feed()
    assert len(spool.files()) == 1
    assert not spool.damaged()


def _fill(database: Database) -> None:
    commits = GroupCommit(database)
    for _ in range(400):
        commits.append([_large()], 60)


def _large() -> Event:
    one = event()
    return one._replace(record=f'{one.record[:-1]},"pad":"{os.urandom(100_000).hex()}"}}')
