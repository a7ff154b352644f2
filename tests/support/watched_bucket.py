"""A bucket of a real MinIO that is watched by listings, and what the log has of it."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from app.config.arn import SourceId
from app.events.model import Event
from app.events.normalize import event_of
from app.events.order import Entry, Fold, from_time
from app.events.own_events import PUT, object_members, own_record
from app.listings.comparison import Replacement
from app.listings.differences import Counts, Run
from app.outbox import tables
from app.outbox.engine.clock import DatabaseClock
from app.outbox.engine.database import Database
from app.outbox.log.append import Receipt
from app.outbox.sources.rows import SourceLease, SourceLeases
from app.outbox.sources.watched import Watched, WatchedBuckets, read_watched
from tests import services
from tests.services import until
from tests.support.pulled_events import Sources

SOURCE = SourceId("bucket", "x")
SETTINGS = {"endpoint": "http://127.0.0.1:9", "bucket": "images"}


class Known:
    """A bucket `images` that is watched, whose source this process has leased."""

    def __init__(self, database: Database) -> None:
        self.database, self.sources, self.clock = database, Sources(database), DatabaseClock(database)
        self.sources.put("bucket", SETTINGS)
        self.leases = SourceLeases(database, 60_000)
        self.watched = WatchedBuckets(database, self.clock, 60_000)
        self.lease = self.claim()

    def claim(self) -> SourceLease:
        lease = self.leases.claim(self.sources.stored(SOURCE), self.clock())
        assert lease is not None
        return lease

    def add(self, number: int, first: str, *events: Event, removed: tuple[int, ...] = ()) -> None:
        self.replace(Replacement(removed, [(number, first, first.encode() * 3)], events))

    def run(self, seq: int | None = 0, began: int = 0, **values: Any) -> Run:
        """A listing that began when the log had events up to a seq, None for all that it has."""
        state = self.watched.log_state()
        values = {"epoch": state.epoch} | values
        return Run("images", "bucket:x", began, began + 5, state.last_seq if seq is None else seq, **values)

    def replace(self, replacement: Replacement, seq: int | None = 0) -> Receipt:
        return self.watched.replace(self.lease, replacement, self.run(seq))

    def finish(self, began: int, **counts: int) -> None:
        run, counted = self.run(None, began), Counts(**counts)
        self.replace(Replacement([], [], (), counted))
        self.watched.finish(self.lease, run, counted, store_time=9, due_at=began + 60_000)


class Watch:
    """A source that lists a bucket of this name, and what the log has of it."""

    def __init__(self, database: Database, name: str, settings: dict[str, str]) -> None:
        self.database, self.sources, self.name, self.settings = database, Sources(database), name, settings
        self.source = SOURCE

    def watch(self, **settings: str) -> SourceId:
        """Set the source."""
        return self.sources.put("bucket", self.settings | settings)

    @property
    def state(self) -> Watched:
        """How far its listings came."""
        stored = self.sources.stored(self.source)
        with self.database.reading() as connection:
            return read_watched(connection).get(stored.row_id) or Watched(stored.row_id)

    def listed(self, count: int) -> None:
        """Return when so many listings are compared."""
        until(lambda: self.state.listings >= count, 60, what=f"listing {count}")

    def list_again(self, times: int = 1) -> None:
        """Have it listed so often, one after the other, at once instead of when it is due."""
        for _ in range(times):
            before = self.state.listings
            self.sources.registry.resume(self.source)
            self.listed(before + 1)

    def events(self) -> list[tuple[str, str]]:
        """The names and keys of the events in the log, in order."""
        e = tables.events.c
        with self.database.reading() as connection:
            rows = connection.execute(sa.select(e.name, e.key).where(e.bucket == self.name).order_by(e.seq))
            return [(name.removeprefix("s3:"), key) for name, key in rows]

    def mirrored(self) -> set[str]:
        """The keys that a mirror of the log's events has."""
        e, folds = tables.events.c, dict[str, Fold]()
        query = sa.select(e.seq, e.name, e.key, e.version, e.sequencer).where(e.bucket == self.name).order_by(e.seq)
        with self.database.reading() as connection:
            for row in connection.execute(query):
                folds.setdefault(row.key, Fold()).add([Entry(row.seq, row.name, row.version, row.sequencer)])
        tops = {key: fold.top() for key, fold in folds.items()}
        return {key for key, top in tops.items() if top is not None and top.is_object}


class WatchedBucket(Watch):
    """A new bucket of a real MinIO."""

    def __init__(self, minio: services.MinIO, database: Database, *, versioned: bool = False, **settings: str) -> None:
        name = f"photos-{uuid4().hex[:8]}"
        super().__init__(database, name, values(minio, name) | {"grace": "0"} | settings)
        self.minio = minio
        self.s3 = minio.boto3()
        self.s3.create_bucket(Bucket=self.name)
        if versioned:
            status = {"Status": "Enabled"}
            self.s3.put_bucket_versioning(Bucket=self.name, VersioningConfiguration=status)

    def put(self, *keys: str, body: bytes = b"x") -> None:
        """Put objects."""
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda key: self.s3.put_object(Bucket=self.name, Key=key, Body=body), keys))

    def remove(self, *keys: str) -> None:
        """Remove objects, or put delete markers."""
        for key in keys:
            self.s3.delete_object(Bucket=self.name, Key=key)

    def keys(self) -> dict[str, str]:
        """The bucket's objects: key to ETag."""
        found: dict[str, str] = {}
        for page in self.s3.get_paginator("list_objects_v2").paginate(Bucket=self.name):
            found |= {entry["Key"]: entry["ETag"].strip('"') for entry in page.get("Contents", ())}
        return found

    def report(self, key: str) -> Event:
        """The event that MinIO would send of an object."""
        head = self.s3.head_object(Bucket=self.name, Key=key)
        moment = round(head["LastModified"].timestamp() * 1000)
        content = {"eTag": head["ETag"].strip('"'), "size": head["ContentLength"]}
        members = object_members(key, "") | content | {"sequencer": from_time((moment + 999) * 1_000_000)}
        return event_of(own_record("minio:s3", PUT, self.name, members, moment, {}), 0, 100)


def values(minio: services.MinIO, bucket: str) -> dict[str, Any]:
    """The settings of a source that lists a bucket."""
    return {
        "endpoint": minio.url, "bucket": bucket, "access_key": services.storage.ACCESS_KEY,
        "secret_key": services.storage.SECRET_KEY,
    }  # fmt: skip


def counted(events: Iterable[tuple[str, str]]) -> dict[str, int]:
    """How many events each key has."""
    counts: dict[str, int] = {}
    for _, key in events:
        counts[key] = counts.get(key, 0) + 1
    return counts
