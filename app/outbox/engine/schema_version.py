"""Compare the schema revision that this code needs with that of the outbox database."""

from functools import cache
from pathlib import Path

import sqlalchemy as sa

import migrations
from app.outbox.engine.database import Database

_VERSION = sa.table("alembic_version", sa.column("version_num"))


def current(database: Database) -> str | None:
    """Return the database's revision; None if it was never migrated."""
    with database.reading() as connection:
        if not sa.inspect(connection).has_table(_VERSION.name):
            return None
        revision: str | None = connection.execute(sa.select(_VERSION.c.version_num)).scalar_one_or_none()
        return revision


def head() -> str:
    """Return the revision that this code needs."""
    return max(revisions())


def is_later(revision: str) -> bool:
    """Return whether a revision belongs to a later version than this code; this code can work with it.

    A migration removes only what the version before it had already stopped using.
    """
    return revision not in revisions()


@cache
def revisions() -> frozenset[str]:
    """Return the revisions that this code knows, read from the file names: asking Alembic takes half a second."""
    files = (Path(migrations.__file__).parent / "versions").glob("[0-9]*.py")
    return frozenset(file.name.partition("_")[0] for file in files)
