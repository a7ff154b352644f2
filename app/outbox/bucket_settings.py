"""Store and change the settings of buckets: where each is, and how the jobs that list it log in."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from app.config.bucket_settings import BucketId, BucketSettings
from app.config.errors import suggest_name
from app.config.secrets import Sealer
from app.config.target_settings import changed_lines, load, texts
from app.outbox import audit, log_head, tables
from app.outbox.declared_rows import SealedSettings, converted, read_row, read_rows, some_names
from app.outbox.engine.database import Database, OpenTransaction, now_ms
from app.outbox.engine.locks import repeated_after_deadlock


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
            return [_stored(row) for row in read_rows(connection, tables.bucket_settings)]

    def bucket(self, bucket: BucketId) -> StoredBucket:
        """Return one. Raises `UnknownBucket`."""
        with self._database.reading() as connection:
            row = read_row(connection, tables.bucket_settings, bucket)
            if row is None:
                raise _unknown(connection, bucket)
        return _stored(row)

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
                raise _unknown(connection, bucket)
            audit.record(connection, "bucket.unset", str(bucket))


def _unknown(connection: sa.Connection, bucket: BucketId) -> UnknownBucket:
    return UnknownBucket(bucket, [name for _, name in some_names(connection, tables.bucket_settings)])


def _stored(row: Any) -> StoredBucket:
    return converted(row, StoredBucket, bucket=BucketId(row.name))
