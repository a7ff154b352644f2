"""Watched buckets: what is known of each, and how far its listings came, in the transactions of the events found.

What is known of a bucket is in chunks, each of some keys that follow each other. The events of what was found in a
chunk are recorded in the transaction that replaces it, so a run that is killed has recorded them or will find them
again, and no file has to agree with the outbox, also not after it was restored to an older state.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa

from app.events.effects import ContentChange, selectors
from app.events.frontends.json_path import find
from app.events.version_history import Entry as LogEntry
from app.listings.comparison import Chunk, Replacement
from app.listings.differences import Counts, LoggedEvent, Run
from app.outbox import log_head, tables
from app.outbox.column_values import clean_reason
from app.outbox.delivery.leases import LeaseLost, at_least
from app.outbox.engine.clock import DatabaseClock
from app.outbox.engine.database import Database
from app.outbox.engine.locks import repeated_after_deadlock, write_alone
from app.outbox.engine.many_rows import chunks
from app.outbox.log.append import Log
from app.outbox.log.batch import QueueFull, Receipt, key_hash
from app.outbox.log.records import is_named, readable
from app.outbox.sources.intake import TargetFull
from app.outbox.sources.leases import SourceLease, fence

_S, _W, _C, _E = tables.sources.c, tables.watched_buckets.c, tables.watched_chunks.c, tables.events.c
_CONTENT = selectors(*set(ContentChange) - {ContentChange.NOTHING})
_FOR_ONE_TARGET = '%"x-bucketwire-target":%'  # in the record of a repair or a backfill, which other targets do not get
_DAY = 86_400_000  # ms
_SCANNED = 10_000  # seqs of one query
_READ = 1_000  # events whose records are read at once
_MAX_LOGGED = 5_000  # events of a key that are looked at, the last ones
FOUND_KINDS = ("created", "changed", "removed")  # of differences that no event explains
_TOTALS = ("explained", *FOUND_KINDS)


@dataclass(frozen=True, slots=True)
class Watched:
    """How far the listings of a bucket came; times are ms. See the table."""

    source_id: int
    complete: bool = False
    began_at: int = 0
    ended_at: int = 0
    store_time: int = 0
    due_at: int = 0
    seq: int = 0
    objects: int = 0
    pending: int = 0
    listings: int = 0
    requests: int = 0
    explained: int = 0
    created: int = 0
    changed: int = 0
    removed: int = 0
    day: int = 0
    found_on_day: int = 0
    found_before: int = 0
    asked: int = 0

    def found_since_yesterday(self, now: int) -> int:
        """Return how many differences that no event explained were found today and yesterday, in UTC."""
        today = now // _DAY
        return self.found_on_day * (self.day >= today - 1) + self.found_before * (self.day >= today)


class WatchedBuckets:
    """Read and write what is known of watched buckets. Use it from one thread at a time."""

    def __init__(self, database: Database, clock: DatabaseClock, lease_ms: int) -> None:
        self._database = database
        self._clock = clock
        self._lease_ms = lease_ms
        self._log = Log(database)

    def state(self, lease: SourceLease) -> Watched:
        """Return how far the listings of a bucket came."""
        with self._database.reading() as connection:
            return read_watched(connection).get(lease.stored.row_id) or Watched(lease.stored.row_id)

    def last_seq(self) -> int:
        """Return the seq of the log's last event."""
        with self._database.reading() as connection:
            return log_head.read(connection).last_seq

    def chunks(self, lease: SourceLease) -> list[Chunk]:
        """Return the chunks in the order of their keys."""
        query = sa.select(_C.number, _C.first).where(_C.source_id == lease.stored.row_id)
        with self._database.reading() as connection:
            places = [Chunk(row.number, bytes(row.first).decode()) for row in connection.execute(query)]
        return sorted(places, key=lambda place: place.first)

    def body(self, lease: SourceLease, number: int) -> bytes:
        """Return what a chunk has. Raises `LeaseLost` if somebody else has replaced it."""
        query = sa.select(_C.body).where(_C.source_id == lease.stored.row_id, _C.number == number)
        with self._database.reading() as connection:
            body = connection.execute(query).scalar()
        if body is None:
            raise LeaseLost(f"source {lease.stored.source}")
        return bytes(body)

    def keys_since(self, bucket: str, prefix: str, after: int) -> Iterator[set[str]]:
        """Yield the keys of a bucket's events after a seq, by parts of the log."""
        with self._database.reading() as connection:
            head = log_head.read(connection)
            of_bucket = (_E.partition.in_(range(head.partitions)), _E.bucket == bucket, is_named(_E.name, _CONTENT))
            if not after:
                first = connection.execute(sa.select(sa.func.min(_E.seq)).where(of_bucket[0])).scalar()
                after = head.last_seq if first is None else first - 1
        for start in range(after, head.last_seq, _SCANNED):
            query = sa.select(_E.key).where(*of_bucket, _E.seq > start, _E.seq <= start + _SCANNED)
            with self._database.reading() as connection:
                yield {key for key in connection.execute(query).scalars() if key.startswith(prefix)}

    def logged(self, bucket: str, keys: Sequence[str]) -> Mapping[str, Sequence[LoggedEvent]]:
        """Return the log's events that change the content of each of these keys, in order; none of a repair."""
        found: dict[str, list[LoggedEvent]] = {key: [] for key in keys}
        for some in chunks(keys):
            query = sa.select(
                _E.seq, _E.name, _E.bucket, _E.key, _E.version, _E.sequencer, _E.time, readable(_E.record)
            ).where(
                _E.key_hash.in_({key_hash(bucket, key) for key in some}),
                is_named(_E.name, _CONTENT),
                _E.record.not_like(_FOR_ONE_TARGET),
                _E.seq > sa.bindparam("after", type_=sa.BigInteger),
            )
            query, after, is_last = query.order_by(_E.seq).limit(_READ), 0, False
            while not is_last:
                with self._database.reading() as connection:
                    rows = connection.execute(query, {"after": after}).all()
                for row in rows:
                    if row.bucket == bucket and row.key in found:
                        found[row.key].append(_logged(row))
                        del found[row.key][:-_MAX_LOGGED]
                is_last, after = len(rows) < _READ, rows[-1].seq if rows else 0
        return found

    def replace(self, lease: SourceLease, replacement: Replacement) -> Receipt:
        """Replace chunks and record events in one commit. Raises `LeaseLost`, `TargetFull`; then nothing is written."""
        now = self._clock()

        def beside(connection: sa.Connection, receipt: Receipt) -> None:
            fence(
                connection,
                lease,
                leased_until=at_least(_S.leased_until, now + self._lease_ms),
                recorded=_S.recorded + receipt.recorded,
                repeated=_S.repeated + receipt.repeated,
                pulled_at=now,
            )
            source_id = lease.stored.row_id
            if replacement.removed:
                mine = (_C.source_id == source_id, _C.number.in_(replacement.removed))
                connection.execute(tables.watched_chunks.delete().where(*mine))
            if replacement.added:
                rows = [
                    {"source_id": source_id, "number": number, "first": first.encode(), "body": body}
                    for number, first, body in replacement.added
                ]
                connection.execute(tables.watched_chunks.insert(), rows)

        if not replacement.events:
            receipt = Receipt()
            write_alone(self._database, lambda connection: beside(connection, receipt))
            return receipt
        [answer] = self._log.append([replacement.events], beside=beside)
        if isinstance(answer, QueueFull):
            raise TargetFull(answer)
        return answer

    @repeated_after_deadlock
    def finish(
        self, lease: SourceLease, run: Run, counts: Counts, *, store_time: int, requests: int, due_at: int
    ) -> None:
        """Note that a listing was compared to its end. Raises `LeaseLost`."""
        now = self._clock()
        with self._database.committing() as connection:
            fence(connection, lease, lag=counts.pending, pulled_at=now, failures=0, error="", error_at=0)
            last = {
                "began_at": run.began,
                "ended_at": run.ended,
                "store_time": store_time,
                "seq": run.seq,
                "due_at": due_at,
            }
            last |= {"objects": counts.objects, "pending": counts.pending, "complete": True}
            sums = {name: getattr(counts, name) for name in _TOTALS} | {"listings": 1, "requests": requests}
            known = read_watched(connection).get(lease.stored.row_id) or Watched(lease.stored.row_id)
            # An approval holds for what is gone and has to wait for the end of the grace, and for nothing else.
            last["asked"] = min(known.asked, counts.going)
            _write(connection, lease, last | _by_day(known, now, counts), sums)

    @repeated_after_deadlock
    def ask(self, lease: SourceLease, removals: int, reason: str) -> None:
        """Pause the source until an operator approves so many removals by resuming it. Raises `LeaseLost`."""
        with self._database.committing() as connection:
            fence(connection, lease, lease_token="", leased_until=0, paused=True, reason=clean_reason(reason), error="")
            _write(connection, lease, {"asked": removals}, {})


def read_watched(connection: sa.Connection) -> dict[int, Watched]:
    """Return how far the listings of each watched bucket came, by the row id of the source."""
    return {row.source_id: Watched(*row) for row in connection.execute(sa.select(tables.watched_buckets))}


def make_due(connection: sa.Connection, source_id: int) -> None:
    """Have a watched bucket listed at once."""
    connection.execute(tables.watched_buckets.update().where(_W.source_id == source_id).values(due_at=0))


def forget(connection: sa.Connection, source_id: int) -> None:
    """Delete what is known of a watched bucket, and how far its listings came."""
    for table in (tables.watched_chunks, tables.watched_buckets):
        connection.execute(table.delete().where(table.c.source_id == source_id))


def _write(connection: sa.Connection, lease: SourceLease, values: Mapping[str, Any], sums: Mapping[str, int]) -> None:
    source_id = lease.stored.row_id
    changes = dict(values) | {name: _W[name] + more for name, more in sums.items()}
    update = tables.watched_buckets.update().where(_W.source_id == source_id)
    if not connection.execute(update.values(**changes)).rowcount:
        none = {column.name: 0 for column in tables.watched_buckets.c} | {"complete": False}
        row = none | {"source_id": source_id} | dict(values) | dict(sums)
        connection.execute(tables.watched_buckets.insert().values(**row))


def _by_day(known: Watched, now: int, counts: Counts) -> dict[str, int]:
    """Return the counts of today and of the day before, with what was found now."""
    today, found = now // _DAY, sum(getattr(counts, kind) for kind in FOUND_KINDS)
    if known.day >= today:
        return {"found_on_day": known.found_on_day + found}
    before = known.found_on_day if known.day == today - 1 else 0
    return {"day": today, "found_on_day": found, "found_before": before}


def _logged(row: Any) -> LoggedEvent:
    thing = find(orjson.loads(row.record), "s3", "object")
    members = thing if isinstance(thing, dict) else {}
    etag, size = members.get("eTag"), members.get("size")
    return LoggedEvent(
        LogEntry(row.seq, row.name, row.version, row.sequencer),
        row.time,
        etag if isinstance(etag, str) and etag else None,
        size if type(size) is int else None,
    )
