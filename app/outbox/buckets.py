"""Buckets, as far as the service knows of them: they have rules, had events, or were created over the S3 face."""

from collections.abc import Iterable
from dataclasses import dataclass

import sqlalchemy as sa

from app.events.buckets import is_bucket_name
from app.outbox import tables
from app.outbox.engine.database import Database
from app.rules.model import EVERY_BUCKET

REMOVED = ("s3:BucketRemoved:*", "s3:BucketRemoved")  # events after which a bucket is not there for having had them
_MOST_REMEMBERED = 100_000
_MOST_LOOKED_AT = 10  # times as many as are wanted: most names are those of buckets


@dataclass(frozen=True, order=True, slots=True)
class Bucket:
    """A bucket and when it was first heard of, in milliseconds since 1970; 0 where only rules name it."""

    name: str
    created_at: int


def every_bucket(database: Database) -> list[Bucket]:
    """The buckets by name."""
    with database.reading() as connection:
        named = connection.execute(sa.select(tables.rules.c.bucket).distinct()).scalars().all()
        found = {name: Bucket(name, 0) for name in named if name != EVERY_BUCKET}
        for row in connection.execute(sa.select(tables.buckets)):
            found[row.name] = Bucket(row.name, row.created_at)
    return sorted(found.values())


def usable_buckets(connection: sa.Connection, most: int) -> tuple[list[str], int]:
    """At most `most` buckets with names that a storage allows, and how many others there are.

    Those that rules name come first and are never too many; then those that have been known longest, so that made-up
    names push out none of them.
    """
    ruled = connection.execute(sa.select(tables.rules.c.bucket).distinct().order_by(tables.rules.c.bucket)).scalars()
    named = [name for name in ruled if name != EVERY_BUCKET]
    unnamed = tables.buckets.c.name.not_in(sa.select(tables.rules.c.bucket))
    number = connection.execute(sa.select(sa.func.count()).select_from(tables.buckets).where(unnamed)).scalar_one()
    oldest = (
        sa.select(tables.buckets.c.name).where(unnamed).order_by(tables.buckets.c.created_at, tables.buckets.c.name)
    )
    heard_of = connection.execute(oldest.limit(_MOST_LOOKED_AT * most)).scalars()
    usable = [name for name in named if is_bucket_name(name)]
    room = max(0, most - len(usable))
    usable += [name for name in heard_of if is_bucket_name(name)][:room]
    return usable, len(named) + number - len(usable)


def is_bucket(database: Database, name: str) -> bool:
    """Whether there is a bucket of this name."""
    known = sa.select(sa.literal(1)).where(tables.buckets.c.name == name)
    ruled = sa.select(sa.literal(1)).where(tables.rules.c.bucket == name).limit(1)
    with database.reading() as connection:
        return name != EVERY_BUCKET and any(connection.execute(query).first() for query in (known, ruled))


def remove_bucket(database: Database, name: str) -> None:
    """Forget a bucket and remove its rules; its events stay, and a later one makes it known again."""
    with database.writing() as connection:
        # As every change of rules: under the lock of the head, whose version tells the writers of the log.
        connection.execute(tables.log_head.update().values(version=tables.log_head.c.version + 1))
        connection.execute(tables.rules.delete().where(tables.rules.c.bucket == name))
        connection.execute(tables.buckets.delete().where(tables.buckets.c.name == name))


class Remembered:
    """The buckets that a writer of the log knows to be in the table, so that it looks for new ones only."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def clear(self) -> None:
        """Forget them: another one may have removed a bucket."""
        self._names.clear()

    def add(self, names: Iterable[str]) -> None:
        """These were committed."""
        if len(self._names) > _MOST_REMEMBERED:
            self._names.clear()
        self._names.update(names)

    def new(self, connection: sa.Connection, names: set[str], now: int) -> set[str]:
        """Write the names that the table lacks; the caller holds the log's head. Says which to `add` once committed."""
        unknown = names - self._names
        if not unknown:
            return unknown
        # MySQL and MariaDB take names that differ by trailing blanks only for the same.
        padded = connection.dialect.name in ("mysql", "mariadb")
        distinct = {name.rstrip(" ") if padded else name: name for name in sorted(unknown, reverse=True)}
        rows = [{"name": name, "created_at": now} for name in distinct.values() if not _is_there(connection, name)]
        if rows:
            connection.execute(tables.buckets.insert(), rows)
        return unknown


def _is_there(connection: sa.Connection, name: str) -> bool:
    return connection.execute(sa.select(tables.buckets.c.name).where(tables.buckets.c.name == name)).first() is not None
