"""Compare the schema revision and the encoding of the outbox database with those that this code needs."""

from functools import cache
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa

import migrations
from app.config.errors import BadSettings, Problem
from app.outbox import tables
from app.outbox.engine.database import Database

_VERSION = sa.table("alembic_version", sa.column("version_num"))
# The service setting in which a migration that does more than add stores the oldest revision whose code may go on.
OLDEST_CODE = "schema.oldest_code"
_MIGRATE = "run `bucketwire migrate`"


class SchemaRefused(Exception):
    """This code cannot use the database's schema; the message says why and what to do."""


class SchemaState(NamedTuple):
    """The revision of a database (None: it was never migrated), and of what use it is to this code.

    `note` says that it is a later one with which this code works, `problem` why this code cannot work with it, and
    `hint` what to do.
    """

    revision: str | None
    note: str = ""
    problem: str = ""
    hint: str = ""

    @property
    def is_refused(self) -> bool:
        """Whether it is a later schema that this code cannot use."""
        return bool(self.problem) and self.hint != _MIGRATE

    def __str__(self) -> str:
        return f"{self.problem}; {self.hint}" if self.problem else self.note


def check(database: Database) -> SchemaState:
    """Compare the database with this code."""
    with database.reading() as connection:
        return check_over(connection)


def check_over(connection: sa.Connection) -> SchemaState:
    """Compare the database with this code. A later schema is usable, unless a later migration said otherwise.

    A migration only adds, and removes what the version before it had already stopped using.
    """
    revision, needed = _current(connection), head()
    if revision is None:
        return SchemaState(None, problem=f"has no tables yet, this version needs {needed}", hint=_MIGRATE)
    if not is_later(revision):
        problem = f"is at revision {revision}, this version needs {needed}" if revision != needed else ""
        return SchemaState(revision, problem=problem, hint=_MIGRATE if problem else "")
    later = f"is at revision {revision}, which is newer than this version's {needed}"
    setting = tables.service_settings.c
    oldest = connection.execute(sa.select(setting.value).where(setting.name == OLDEST_CODE)).scalar_one_or_none()
    if oldest is not None and is_later(oldest):
        problem = f"{later} and needs code of revision {oldest} or newer"
        return SchemaState(revision, problem=problem, hint="use the version that migrated it, or a newer one")
    return SchemaState(revision, note=f"{later}; this version works with it")


def current(database: Database) -> str | None:
    """Return the database's revision; None if it was never migrated."""
    with database.reading() as connection:
        return _current(connection)


def _current(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table(_VERSION.name):
        return None
    revision: str | None = connection.execute(sa.select(_VERSION.c.version_num)).scalar_one_or_none()
    return revision


def head() -> str:
    """Return the revision that this code needs."""
    return max(revisions())


def is_later(revision: str) -> bool:
    """Return whether a revision belongs to a later version than this code."""
    return revision not in revisions()


@cache
def revisions() -> frozenset[str]:
    """Return the revisions that this code knows, read from the file names: asking Alembic takes half a second."""
    files = (Path(migrations.__file__).parent / "versions").glob("[0-9]*.py")
    return frozenset(file.name.partition("_")[0] for file in files)


_NEEDED = "UTF8"


def encoding_problem(connection: sa.Connection) -> Problem | None:
    """Return the problem of a PostgreSQL database in another encoding than UTF-8; other databases have none.

    The tables of MySQL and MariaDB are created with an encoding of their own.
    """
    if connection.dialect.name != "postgresql":
        return None
    encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
    if encoding == _NEEDED:
        return None
    return Problem(
        "BUCKETWIRE_DATABASE_URL",
        connection.engine.url.database or "",
        f"is a database in {encoding}, which cannot hold every key",
        "create one with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0",
    )


def check_encoding(connection: sa.Connection) -> None:
    """Raise `BadSettings` if the database cannot hold every text."""
    problem = encoding_problem(connection)
    if problem is not None:
        raise BadSettings([problem])
