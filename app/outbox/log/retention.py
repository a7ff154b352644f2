"""Delete events older than the retention period from the log, in batches that hold locks briefly.

An event that every cursor has passed stays in the log as long as

* it is parked or a dead letter of any target, because later deliveries read it from the log;
* the redelivery of its object is requested, and the event is not older than the request's `since`;
* it is of a watched bucket and came since its last listing began, whose next one needs it to know what was reported;
  but a day after that was due, it is no longer kept; for a first listing all of the bucket's events stay, but a day
  after it was due or tried first, they are no longer kept;
* it is the newest of its object (by sequencer, among the events of the same targets) and an older one stays in the log.
  The newest event lets a mirror detect that the older one, delivered once more, is superseded. This works for any
  order in which the events were recorded or leave the log, and it keeps one event per object, however many there were.

The mirror policy's knowledge of versioned keys outlives the events (`app.outbox.object_versions`).
"""

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import sqlalchemy as sa

from app.outbox import log_head, tables
from app.outbox.column_values import NEVER, WHOLE_LOG
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database
from app.outbox.engine.many_rows import chunks, try_lock_tail
from app.outbox.log import arrivals
from app.outbox.object_versions import keep_records
from app.outbox.policies import RETENTION


@dataclass(slots=True)
class _Pass:
    """One pass over a partition, starting at its oldest event."""

    begun: float
    after: int = 0  # the seq that it has reached
    ended: bool = False  # it has reached events that are too young, and waits there


@dataclass(slots=True)
class PurgeProgress:
    """How far the purges of this process have advanced in each partition.

    It is lost when the process ends; then the next purges check every kept event once more.
    """

    passes: dict[int, _Pass] = field(default_factory=dict)

    @property
    def is_behind(self) -> bool:
        """Whether the last purge stopped before it had come to the events that are too young."""
        return not all(purge_pass.ended for purge_pass in self.passes.values())

    def of(self, partition: int) -> _Pass:
        """Return the partition's pass, or a new one if the last has ended and began long enough ago."""
        now = time.monotonic()
        known = self.passes.get(partition)
        if known is None or (known.ended and now - known.begun > RETENTION.revisit_seconds):
            known = self.passes[partition] = _Pass(now)
        return known


def purge(
    database: Database,
    older_than: int,
    *,
    batch_events: int = RETENTION.batch_events,
    max_events: int = RETENTION.max_events,
    seconds: float = math.inf,
    progress: PurgeProgress | None = None,
) -> int:
    """Delete events received before `older_than` (ms) that every cursor has passed and nothing needs.

    Returns the number of deleted events. A purge is short: it stops after `max_events` or `seconds`, or when another
    transaction has locked the log's tail, and the next one continues at `progress`, or without it at the oldest event
    of each partition. A transaction checks `batch_events` (at most 1000), whether it deletes them or not; a batch of
    which all events stay takes no lock. In each partition the purge stops at the first batch without an old event,
    except that events from the future, which a wrong clock recorded, stop nothing: they stay until they are old. The
    records that a mirror needs of deleted events are copied to its `object_versions`.
    """
    progress = progress or PurgeProgress()
    with database.reading() as connection:
        partitions, listed = log_head.read(connection).partitions, _listed(connection)
    removed, ends = 0, time.monotonic() + seconds
    for partition in Random().sample(range(partitions), partitions):  # noqa: S311 - so that none is always the last
        current = progress.of(partition)
        current.ended = False
        while not current.ended and removed < max_events and time.monotonic() < ends:
            count = _purge_batch(database, partition, current, older_than, batch_events, listed)
            if count is None:
                return removed
            removed += count
    return removed


@dataclass(frozen=True, slots=True)
class _Window:
    """A range of consecutive old events of a partition, and those of them that may be deleted."""

    removable: Sequence[Any]
    last: int  # the seq of the last event that was old enough, after which the next window begins
    is_last: bool  # no event after it is known to be old enough


def _purge_batch(
    database: Database, partition: int, current: _Pass, older_than: int, batch_events: int, listed: Mapping[str, int]
) -> int | None:
    """Return how many events were deleted; None if nothing was done because the log's tail is locked."""
    with database.reading() as connection:
        window = _read_window(connection, partition, current.after, older_than, batch_events, listed)
    if window.removable:
        e = tables.events.c
        with database.writing() as connection:
            # A new replay adds a cursor at the tail of the log: this transaction must see it, or the replay must begin
            # after the COMMIT. The same applies to a redelivery that is carried out. So read all again under the lock.
            # Do not wait for it: the drain runs in the same process, and the holder may be stopped.
            if not try_lock_tail(connection):
                return None
            window = _read_window(connection, partition, current.after, older_than, batch_events, listed)
            keep_records(connection, partition, window.removable)
            for seqs in chunks([row.seq for row in window.removable]):
                connection.execute(tables.events.delete().where(e.partition == partition, e.seq.in_(seqs)))
    current.after, current.ended = window.last, window.is_last
    return len(window.removable)


def _listed(connection: sa.Connection) -> Mapping[str, int]:
    """Return the seqs after which the events of watched buckets stay: the log's last when their last listings began."""
    w, since = tables.watched_buckets.c, database_now(connection) - RETENTION.overdue_listing_ms
    is_first = sa.and_(w.complete.is_(sa.false()), w.began_at > since)
    is_needed = (w.bucket != "", sa.or_(w.due_at > since, is_first))
    query = sa.select(w.bucket, sa.func.min(w.seq).label("seq")).where(*is_needed).group_by(w.bucket)
    return {row.bucket: row.seq for row in connection.execute(query)}


def _read_window(
    connection: sa.Connection, partition: int, after: int, older_than: int, batch_events: int, listed: Mapping[str, int]
) -> _Window:
    """Check a batch of events after `after`; those of buckets that are `listed` stay after these seqs."""
    e = tables.events.c
    query = (
        sa.select(e.seq, e.received_at, e.key_hash, e.bucket, e.key, e.sequencer, e.targets)
        .where(e.partition == partition, e.seq > after, e.seq <= _passed(connection, partition))
        .order_by(e.seq)
        .limit(batch_events)
    )
    rows = connection.execute(query).all()
    old = [row for row in rows if row.received_at < older_than]
    if not old:
        from_future = bool(rows) and rows[-1].received_at > database_now(connection)
        return _Window((), rows[-1].seq if from_future else after, is_last=not from_future)
    referred = _referred(connection, partition, old[0].seq, old[-1].seq)
    suspect = _redelivered_since(connection, partition, {row.key_hash for row in old})
    free = {
        row.seq: row
        for row in old
        if row.seq not in referred
        and row.seq < suspect.get(row.key_hash, NEVER)
        and row.seq <= listed.get(row.bucket, NEVER)
    }
    kept = _newest_of_kept(connection, partition, rows, free)
    # Events after the last old one will be old soon, so the next window begins with them.
    removable = [row for seq, row in free.items() if seq not in kept]
    return _Window(removable, old[-1].seq, is_last=len(rows) < batch_events)


def _passed(connection: sa.Connection, partition: int) -> int:
    """Return the seq up to which no cursor of the partition has an event before it."""
    a, c, head = tables.arrivals.c, tables.cursors.c, tables.log_head.c
    own = sa.and_(c.replay_id == WHOLE_LOG, c.position < sa.func.coalesce(a.last_seq, 0))
    of_replay = sa.and_(c.replay_id > WHOLE_LOG, c.position < c.until)
    behind = arrivals.CURSORS
    least = (
        sa.select(sa.func.min(c.position)).select_from(behind).where(c.partition == partition, sa.or_(own, of_replay))
    )
    row = connection.execute(sa.select(least.scalar_subquery().label("position"), head.arrivals_seq)).one()
    # Events after `arrivals_seq` may be for any target.
    return int(row.arrivals_seq if row.position is None else min(row.position, row.arrivals_seq))


def _referred(connection: sa.Connection, partition: int, first: int, last: int) -> set[int]:
    """Return the seqs from `first` to `last` that are parked or dead letters of any target."""
    of_tables = [
        sa.select(table.c.seq).where(table.c.partition == partition, table.c.seq.between(first, last))
        for table in (tables.parked, tables.dead_letters)
    ]
    # One statement, so that an event that is moved from one table to the other is seen in one of them.
    return set(connection.execute(sa.union(*of_tables)).scalars())


def _redelivered_since(connection: sa.Connection, partition: int, hashes: set[int]) -> dict[int, int]:
    """Return, by key hash, the first seq that the requested redeliveries of these objects need."""
    r = tables.redeliveries.c
    query = sa.select(r.key_hash, sa.func.min(r.since).label("since")).where(r.partition == partition)
    query = query.group_by(r.key_hash)
    return {
        row.key_hash: row.since
        for some_hashes in chunks(sorted(hashes))
        for row in connection.execute(query.where(r.key_hash.in_(some_hashes)))
    }


def _newest_of_kept(connection: sa.Connection, partition: int, rows: Sequence[Any], free: dict[int, Any]) -> set[int]:
    """Return those of the `free` events that are the newest of their object while an older one stays in the log.

    `rows` is the window to which they belong.
    """
    newest: dict[tuple[str, str, str], Any] = {}
    for row in rows:
        group = (row.bucket, row.key, row.targets)
        if row.sequencer and (group not in newest or _order(row) > _order(newest[group])):
            newest[group] = row
    candidate_seqs = [row.seq for row in newest.values() if row.seq in free]
    if not candidate_seqs:
        return set()
    stays: dict[tuple[str, str], str] = {}  # the least sequencer of each object's events that stay, within this window
    for row in rows:
        if row.sequencer and row.seq not in free:
            stays[row.bucket, row.key] = min(row.sequencer, stays.get((row.bucket, row.key), row.sequencer))
    candidates: dict[tuple[str, str], list[Any]] = defaultdict(list)
    older_elsewhere = set()
    window = {"of_partition": partition, "first": rows[0].seq, "last": rows[-1].seq}
    for seqs in chunks(candidate_seqs):
        for newest_row in connection.execute(_NEWEST, {**window, "seqs": seqs}):
            row = free[newest_row.seq]
            candidates[row.bucket, row.key].append(row)
            if newest_row.older_elsewhere:
                older_elsewhere.add(row.seq)
    kept = set()
    for key, ordered in candidates.items():
        for row in sorted(ordered, key=_order):
            if row.seq in older_elsewhere or (key in stays and stays[key] < row.sequencer):
                kept.add(row.seq)
                stays[key] = min(row.sequencer, stays.get(key, row.sequencer))
    return kept


def _order(row: Any) -> tuple[str, int]:
    return row.sequencer, row.seq


def _newest() -> sa.Select[Any]:
    """Build the query for the events that are the newest of their object and targets, and whether older ones exist.

    Each lookup is a short index scan: to the next newer event, or from the oldest event to the first one outside the
    window from `first` to `last`.
    """
    e, other = tables.events.c, tables.events.alias("other")

    def exists(*conditions: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
        query = sa.select(sa.literal(1)).select_from(other).correlate(tables.events)
        for dialect in ("mysql", "mariadb"):
            query = query.with_hint(other, "FORCE INDEX (ix_events_key_hash_sequencer)", dialect)
        same = (other.c.key_hash == e.key_hash, other.c.key == e.key, other.c.bucket == e.bucket)
        return query.where(*same, *conditions).exists()

    newer = exists(
        other.c.sequencer >= e.sequencer,
        sa.or_(other.c.sequencer > e.sequencer, other.c.seq > e.seq),
        other.c.targets == e.targets,
    )
    older_elsewhere = exists(
        other.c.sequencer > "",
        other.c.sequencer < e.sequencer,
        sa.or_(other.c.seq < sa.bindparam("first"), other.c.seq > sa.bindparam("last")),
    )
    return sa.select(e.seq, older_elsewhere.label("older_elsewhere")).where(
        e.partition == sa.bindparam("of_partition"), e.seq.in_(sa.bindparam("seqs", expanding=True)), ~newer
    )


_NEWEST = _newest()
