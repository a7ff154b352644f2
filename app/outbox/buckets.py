"""Keep the buckets that the service knows, and store and change their settings.

A bucket is known if it has rules, had events, or was created through the S3 API. Its settings say where it is, and how
the jobs that list it log in; a bucket may have settings before it is known.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from app.config.bucket_settings import BucketId, BucketSettings
from app.config.errors import suggest_name
from app.config.secrets import Sealer
from app.config.target_settings import changed_lines, load, texts
from app.events.buckets import is_bucket_name
from app.events.own_events import SERVICE_BUCKET
from app.outbox import audit, log_head, tables
from app.outbox.declared import SealedSettings, converted, read_row, read_rows, some_names
from app.outbox.engine.database import Database, OpenTransaction, now_ms
from app.outbox.engine.many_rows import repeated_after_deadlock
from app.outbox.policies import APPEND, RECONCILIATIONS
from app.rules.model import EVERY_BUCKET

REMOVED = ("s3:BucketRemoved:*", "s3:BucketRemoved")  # events that do not show that the bucket exists
_NO_BUCKETS = (EVERY_BUCKET, SERVICE_BUCKET)  # rules may name them


@dataclass(frozen=True, order=True, slots=True)
class Bucket:
    """A bucket and the time when the service first saw it, in milliseconds since 1970; 0 if only rules name it."""

    name: str
    created_at: int


def every_bucket(database: Database) -> list[Bucket]:
    """Return all known buckets, sorted by name."""
    with database.reading() as connection:
        named = connection.execute(sa.select(tables.rules.c.bucket).distinct()).scalars().all()
        buckets = {name: Bucket(name, 0) for name in named if name not in _NO_BUCKETS}
        for row in connection.execute(sa.select(tables.buckets)):
            buckets[row.name] = Bucket(row.name, row.created_at)
    return sorted(buckets.values())


def count_buckets(database: Database) -> int:
    """Return the number of known buckets."""
    b, r = tables.buckets.c, tables.rules.c
    named = sa.select(r.bucket).where(r.bucket.not_in(_NO_BUCKETS), r.bucket.not_in(sa.select(b.name))).distinct()
    with database.reading() as connection:
        known = connection.execute(sa.select(sa.func.count()).select_from(tables.buckets)).scalar_one()
        return int(known + connection.execute(sa.select(sa.func.count()).select_from(named.subquery())).scalar_one())


def usable_buckets(connection: sa.Connection, max_buckets: int) -> tuple[list[str], int]:
    """Return up to `max_buckets` with names that an S3 storage allows, and the number of the other buckets.

    Buckets that rules name come first, all of them even if there are more than that. The buckets known longest
    follow, so that invented names cannot displace them.
    """
    ruled = connection.execute(sa.select(tables.rules.c.bucket).distinct().order_by(tables.rules.c.bucket)).scalars()
    named = [name for name in ruled if name not in _NO_BUCKETS]
    unnamed = tables.buckets.c.name.not_in(sa.select(tables.rules.c.bucket))
    number = connection.execute(sa.select(sa.func.count()).select_from(tables.buckets).where(unnamed)).scalar_one()
    oldest = (
        sa.select(tables.buckets.c.name).where(unnamed).order_by(tables.buckets.c.created_at, tables.buckets.c.name)
    )
    heard_of = connection.execute(oldest.limit(RECONCILIATIONS.bucket_rows * max_buckets)).scalars()
    usable = [name for name in named if is_bucket_name(name)]
    room = max(0, max_buckets - len(usable))
    usable += [name for name in heard_of if is_bucket_name(name)][:room]
    return usable, len(named) + number - len(usable)


def is_bucket(database: Database, name: str) -> bool:
    """Return whether the service knows a bucket of this name."""
    known = sa.select(sa.literal(1)).where(tables.buckets.c.name == name)
    ruled = sa.select(sa.literal(1)).where(tables.rules.c.bucket == name).limit(1)
    with database.reading() as connection:
        return name not in _NO_BUCKETS and any(connection.execute(query).first() for query in (known, ruled))


@repeated_after_deadlock
def remove_bucket(database: Database, name: str) -> None:
    """Forget a bucket and remove its rules. Its events stay, and a later event makes the bucket known again."""
    with database.writing() as connection:
        log_head.change_routing(connection)
        rules = connection.execute(tables.rules.delete().where(tables.rules.c.bucket == name)).rowcount
        connection.execute(tables.buckets.delete().where(tables.buckets.c.name == name))
        audit.record(connection, "bucket.remove", f"bucket:{name}", {"rules": rules})


class Remembered:
    """Cache of the buckets that are in the table, so that a writer of the log queries new names only."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def include(self, names: set[str]) -> bool:
        """Return whether all these buckets are known to be in the table."""
        return names <= self._names

    def clear(self) -> None:
        """Empty the cache; needed when another process may have removed a bucket."""
        self._names.clear()

    def add(self, names: Iterable[str]) -> None:
        """Add names whose rows are committed."""
        if len(self._names) > APPEND.max_known_buckets:
            self._names.clear()
        self._names.update(names)

    def new(self, connection: sa.Connection, names: set[str], now: int) -> set[str]:
        """Insert the names that the table lacks, and return those to `add` after the commit.

        The caller holds the lock of the log's head.
        """
        unknown = names - self._names
        if not unknown:
            return unknown
        # MySQL and MariaDB treat names that differ only in trailing blanks as equal.
        padded = connection.dialect.name in ("mysql", "mariadb")
        distinct = {name.rstrip(" ") if padded else name: name for name in sorted(unknown, reverse=True)}
        rows = [{"name": name, "created_at": now} for name in distinct.values() if not _is_there(connection, name)]
        if rows:
            connection.execute(tables.buckets.insert(), rows)
        return unknown


def _is_there(connection: sa.Connection, name: str) -> bool:
    return connection.execute(sa.select(tables.buckets.c.name).where(tables.buckets.c.name == name)).first() is not None


class UnknownBucket(LookupError):
    """The bucket has no settings."""

    def __init__(self, bucket: BucketId, known: Iterable[str] = ()) -> None:
        hint = suggest_name(bucket.name, known, "bucketwire bucket ls")
        super().__init__(f"the bucket {bucket.name} has no settings; {hint}")


@dataclass(frozen=True, slots=True)
class StoredBucket:
    """A row of the table of buckets' settings; `values` are texts, with sealed secrets."""

    row_id: int
    bucket: BucketId
    values: Mapping[str, str]
    created_at: int

    @property
    def identity(self) -> BucketId:
        """The bucket."""
        return self.bucket

    @property
    def origin(self) -> str:
        """Where it is defined: no variables name buckets."""
        return "stored"

    @property
    def is_read_only(self) -> bool:
        """Whether it can be changed."""
        return False


class BucketRegistry(SealedSettings[BucketSettings]):
    """Read and change the settings of buckets. A bucket without any is listed as boto3's settings say."""

    def __init__(self, database: Database | OpenTransaction, sealer: Sealer) -> None:
        super().__init__(sealer, tables.bucket_settings, lambda _: BucketSettings)
        self._database = database

    def buckets(self) -> list[StoredBucket]:
        """Return every bucket that has settings, sorted by name."""
        with self._database.reading() as connection:
            return [_stored_bucket(row) for row in read_rows(connection, tables.bucket_settings)]

    def bucket(self, bucket: BucketId) -> StoredBucket:
        """Return one. Raises `UnknownBucket`."""
        with self._database.reading() as connection:
            row = read_row(connection, tables.bucket_settings, bucket)
            if row is None:
                raise _unknown_bucket(connection, bucket)
        return _stored_bucket(row)

    def access(self, name: str) -> BucketSettings:
        """Return how to list the bucket that events and rules call `name`. Raises `BadSettings`."""
        try:
            return self.settings(self.bucket(BucketId(name)))
        except UnknownBucket:
            return BucketSettings()

    @repeated_after_deadlock
    def put(self, bucket: BucketId, values: Mapping[str, object], *, lenient: bool = False) -> None:
        """Set or replace the settings of a bucket. Raises `BadSettings`; then nothing has changed."""
        load(BucketSettings, values, lenient=lenient)
        stored, b = texts(BucketSettings, values), tables.bucket_settings.c
        with self._database.writing() as connection:
            log_head.lock(connection)  # a declaration that is being applied has read whether it is there
            known = read_row(connection, tables.bucket_settings, bucket, lock=True)
            details = {"settings": changed_lines(BucketSettings, self.unseal_to_compare(known, bucket), stored)}
            columns: dict[str, Any] = {"settings": self.seal(bucket.type, stored)}
            if known is None:
                columns |= {"type": bucket.type, "name": bucket.name, "created_at": now_ms()}
                connection.execute(tables.bucket_settings.insert().values(columns))
            else:
                change = tables.bucket_settings.update().where(b.id == known.id)
                connection.execute(change.values(columns))
            audit.record(connection, "bucket.set", str(bucket), details)

    @repeated_after_deadlock
    def remove(self, bucket: BucketId) -> None:
        """Forget the settings of a bucket; its rules and events stay. Raises `UnknownBucket`."""
        b = tables.bucket_settings.c
        with self._database.writing() as connection:
            log_head.lock(connection)
            if not connection.execute(tables.bucket_settings.delete().where(b.name == bucket.name)).rowcount:
                raise _unknown_bucket(connection, bucket)
            audit.record(connection, "bucket.unset", str(bucket))


def _unknown_bucket(connection: sa.Connection, bucket: BucketId) -> UnknownBucket:
    return UnknownBucket(bucket, [name for _, name in some_names(connection, tables.bucket_settings)])


def _stored_bucket(row: Any) -> StoredBucket:
    return converted(row, StoredBucket, bucket=BucketId(row.name))
