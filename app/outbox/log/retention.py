"""Remove what retention no longer asks for from the tail of the log, in batches that hold no lock for long.

An event that every cursor has passed stays in the log nevertheless while

* it is parked or a dead letter of some target: what is delivered later is read from the log;
* the redelivery of its object is requested, and it is not older than the request;
* it is the newest of its object (by sequencer, among those of the same targets) and an older one stays in the log.
  A mirror learns from the newest that the older one, delivered once more, is superseded. This holds in whatever order
  the events were recorded or leave the log, and keeps one event of an object however many there were.

What the mirror policy knows of versioned keys outlives the events (`app.outbox.versions`).
"""

import math
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import sqlalchemy as sa

from app.outbox import tables
from app.outbox.engine.database import Database
from app.outbox.engine.locks import lock_tail
from app.outbox.log.append import chunks
from app.outbox.markers import NEVER
from app.outbox.versions.retention import drop_unused, keep_records

_REVISIT_INTERVAL = 600.0  # seconds after which the events that were kept are looked at again


@dataclass(slots=True)
class _Pass:
    """One passage over a partition, from its oldest event on."""

    begun: float
    after: int = 0  # the seq up to which it has come
    ended: bool = False  # it has come to where the events are too young, and waits there for more


@dataclass(slots=True)
class PurgeProgress:
    """How far the purges of this process have come in each partition.

    Where it is lost, with the process, the next purges look at every kept event once more before they go on.
    """

    passes: dict[int, _Pass] = field(default_factory=dict)

    def of(self, partition: int) -> _Pass:
        """The partition's pass; a new one where the last has ended and began long enough ago."""
        now = time.monotonic()
        known = self.passes.get(partition)
        if known is None or (known.ended and now - known.begun > _REVISIT_INTERVAL):
            known = self.passes[partition] = _Pass(now)
        return known


def purge(
    database: Database,
    older_than: int,
    *,
    batch: int = 1000,
    most: int = 100_000,
    seconds: float = math.inf,
    unused: bool = True,
    progress: PurgeProgress | None = None,
) -> int:
    """Delete events received before `older_than` (ms) that every cursor has passed and nothing needs.

    Returns how many; stops after `most` of them or so many `seconds`, so that a purge is never long: the next one goes
    on, where `progress` says, or else from the oldest event of each partition. A transaction looks at `batch` events
    (at most 1000), whether it removes them or not, and nothing is locked for a batch of which all stay. It looks at a
    partition up to the first batch without an old event, not at all of it. What a mirror needs of the events is kept
    with what it knows of its keys. With `unused` what was kept for mirrors that are none any more is deleted, too,
    which locks every mirror's cursors in turn.
    """
    progress = progress or PurgeProgress()
    with database.reading() as connection:
        partitions = connection.execute(sa.select(tables.log_head.c.partitions)).scalar_one()
    removed, ends = 0, time.monotonic() + seconds
    for partition in Random().sample(range(partitions), partitions):  # noqa: S311 - so that none is always the last
        current = progress.of(partition)
        current.ended = False
        while not current.ended and removed < most and time.monotonic() < ends:
            removed += _purge_batch(database, partition, current, older_than, batch)
    if unused:
        drop_unused(database)
    return removed


@dataclass(frozen=True, slots=True)
class _Window:
    """Consecutive events of a partition, as far as they were old enough, and those of them that may go."""

    removable: Sequence[Any]
    last: int  # the seq of the last event that was old enough: where the next look begins
    is_last: bool  # nothing old enough is known behind it


def _purge_batch(database: Database, partition: int, current: _Pass, older_than: int, batch: int) -> int:
    with database.reading() as connection:
        window = _look(connection, partition, current.after, older_than, batch)
    if window.removable:
        e = tables.events.c
        with database.writing() as connection:
            # A replay that begins adds a cursor at the tail of the log: it must be seen here, or begin after the
            # COMMIT. The same holds for a redelivery that is carried out. So all is read again under the lock.
            lock_tail(connection)
            window = _look(connection, partition, current.after, older_than, batch)
            keep_records(connection, partition, window.removable)
            for some in chunks([row.seq for row in window.removable]):
                connection.execute(tables.events.delete().where(e.partition == partition, e.seq.in_(some)))
    current.after, current.ended = window.last, window.is_last
    return len(window.removable)


def _look(connection: sa.Connection, partition: int, after: int, older_than: int, batch: int) -> _Window:
    """Look at a batch of events behind `after`."""
    e = tables.events.c
    query = (
        sa.select(e.seq, e.received_at, e.key_hash, e.bucket, e.key, e.sequencer, e.targets)
        .where(e.partition == partition, e.seq > after, e.seq <= _passed(connection, partition))
        .order_by(e.seq)
        .limit(batch)
    )
    rows = connection.execute(query).all()
    old = [row for row in rows if row.received_at < older_than]
    if not old:
        return _Window((), after, is_last=True)
    referred = _referred(connection, partition, old[0].seq, old[-1].seq)
    suspect = _redelivered_since(connection, partition, {row.key_hash for row in old})
    free = {row.seq: row for row in old if row.seq not in referred and row.seq < suspect.get(row.key_hash, NEVER)}
    kept = _superseding(connection, partition, rows, free)
    # Those behind the last old one will be old soon: the next look is for them, too.
    removable = [row for seq, row in free.items() if seq not in kept]
    return _Window(removable, old[-1].seq, is_last=len(rows) < batch)


def _passed(connection: sa.Connection, partition: int) -> int:
    """The seq up to which every cursor of the partition has come; the log's head where there is none."""
    c = tables.cursors.c
    least = sa.select(sa.func.min(c.position)).where(c.partition == partition, c.position < c.until).scalar_subquery()
    return int(connection.execute(sa.select(sa.func.coalesce(least, tables.log_head.c.last_seq))).scalar_one())


def _referred(connection: sa.Connection, partition: int, first: int, last: int) -> set[int]:
    """The seqs from `first` to `last` that are parked or dead for some target."""
    of_tables = [
        sa.select(table.c.seq).where(table.c.partition == partition, table.c.seq.between(first, last))
        for table in (tables.parked, tables.dead_letters)
    ]
    # One statement: an event on its way from one table to the other is in one of them.
    return set(connection.execute(sa.union(*of_tables)).scalars())


def _redelivered_since(connection: sa.Connection, partition: int, hashes: set[int]) -> dict[int, int]:
    """From which seq on the events of some objects are needed by the redeliveries that are requested of them."""
    r = tables.redeliveries.c
    query = sa.select(r.key_hash, sa.func.min(r.since).label("since")).where(r.partition == partition)
    query = query.group_by(r.key_hash)
    return {
        row.key_hash: row.since
        for some in chunks(sorted(hashes))
        for row in connection.execute(query.where(r.key_hash.in_(some)))
    }


def _superseding(connection: sa.Connection, partition: int, rows: Sequence[Any], free: dict[int, Any]) -> set[int]:
    """Those of the `free` events that are the newest of their object while an older one stays in the log.

    `rows` is the window that they are part of.
    """
    newest: dict[tuple[str, str, str], Any] = {}
    for row in rows:
        group = (row.bucket, row.key, row.targets)
        if row.sequencer and (group not in newest or _place(row) > _place(newest[group])):
            newest[group] = row
    asked = [row.seq for row in newest.values() if row.seq in free]
    if not asked:
        return set()
    stays: dict[tuple[str, str], str] = {}  # the least sequencer of an object's events that stay, in this window
    for row in rows:
        if row.sequencer and row.seq not in free:
            stays[row.bucket, row.key] = min(row.sequencer, stays.get((row.bucket, row.key), row.sequencer))
    candidates: dict[tuple[str, str], list[Any]] = defaultdict(list)
    older_elsewhere = set()
    place = {"of_partition": partition, "first": rows[0].seq, "last": rows[-1].seq}
    for some in chunks(asked):
        for found in connection.execute(_NEWEST, {**place, "seqs": some}):
            row = free[found.seq]
            candidates[row.bucket, row.key].append(row)
            if found.older_elsewhere:
                older_elsewhere.add(found.seq)
    kept = set()
    for key, ordered in candidates.items():
        for row in sorted(ordered, key=_place):
            if row.seq in older_elsewhere or (key in stays and stays[key] < row.sequencer):
                kept.add(row.seq)
                stays[key] = min(row.sequencer, stays.get(key, row.sequencer))
    return kept


def _place(row: Any) -> tuple[str, int]:
    return row.sequencer, row.seq


def _newest() -> sa.Select[Any]:
    """Of some events those that are the newest of their object and targets, and whether there are older ones.

    Each look-up is a short walk along an index: to the next newer event, or from the oldest to the first outside of
    the window from `first` to `last`.
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
