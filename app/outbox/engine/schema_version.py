"""The schema that this code needs, and the one that the outbox database has."""

from functools import cache
from pathlib import Path

import sqlalchemy as sa

import migrations
from app.outbox.engine.database import Database

_VERSION = sa.table("alembic_version", sa.column("version_num"))


def current(database: Database) -> str | None:
    """The revision that the database stands at; None when it was never migrated."""
    with database.reading() as connection:
        if not sa.inspect(connection).has_table(_VERSION.name):
            return None
        found: str | None = connection.execute(sa.select(_VERSION.c.version_num)).scalar_one_or_none()
        return found


def head() -> str:
    """The revision that this code needs."""
    return max(revisions())


def is_later(revision: str) -> bool:
    """Whether a revision is that of a later version than this code, hence one that this code can work with.

    A migration takes away only what the version before it had already stopped using.
    """
    return revision not in revisions()


@cache
def revisions() -> frozenset[str]:
    """Every revision that this code knows, each as its file's name begins: to ask Alembic takes half a second."""
    files = (Path(migrations.__file__).parent / "versions").glob("[0-9]*.py")
    return frozenset(file.name.partition("_")[0] for file in files)
