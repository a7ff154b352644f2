"""Read the log for a reconciliation or a backfill: what is in flight, what has changed, and the newest sequencers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from app.config.arn import TargetId
from app.events.model import Event
from app.events.names import ContentChange, content_change, is_concrete, selectors_with
from app.listings.limits import BadListing
from app.outbox import log_head, tables
from app.outbox.declared import find_target
from app.outbox.delivery.leases import replay_partitions
from app.outbox.delivery.logged_events import selected
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database
from app.outbox.engine.many_rows import chunks
from app.outbox.errors import LogLost
from app.outbox.log.append import Guard, key_hash
from app.outbox.log.arrivals import unread_of_targets
from app.outbox.log.reading import is_for, is_named
from app.outbox.object_versions import ObjectKey, key_state
from app.outbox.reconcile.runs import LogPosition

_CONTENT = selectors_with(
    ContentChange.CREATED, ContentChange.DELETE_MARKER, ContentChange.REMOVED, ContentChange.ALL_DELETED
)
_MARGIN = 3_600_000  # ms; a tenth of the retention if that is less
_STREAMED_ROWS = 5000  # that are in memory at a time
_YOUNG_SEQS = 5000  # of the first part of the log that is read backwards
_OWN_EVENTS = '%"eventSource":"bucketwire:%'  # repairs and backfills, which do not change the bucket


@dataclass(frozen=True, slots=True)
class LogMark:
    """The log's last seq at one moment, and the position up to which a run that begins then compares all events."""

    seq: int
    position: LogPosition


def log_mark(
    database: Database, target: TargetId, bucket: str, keep: Callable[[Iterator[str]], object], *,
    event_names: Sequence[str] = (), young: int | None = None,
) -> LogMark:  # fmt: skip
    """Return the log's last seq, and pass the bucket's keys that are in flight to the target to `keep`, some again.

    Some of them are in memory at a time, however many there are. With `event_names`, only these events count
    (`is_named`). With `young` (ms) the position is before the events that were received since.

    Raises `UnknownTarget`.
    """
    e, least = tables.events.c, _Least()
    in_bucket = [e.bucket == bucket, is_named(e.name, event_names)] if event_names else [e.bucket == bucket]
    with database.snapshot() as connection:
        target_id = find_target(connection, target).row_id
        now, state = database_now(connection), log_head.read_state(connection)
        keep(least.keys(_undelivered(connection, target_id, in_bucket)))
        if young is not None:
            _find_young(connection, state.last_seq, young, least)
    # After a failover that no worker has noticed yet, the epoch is none that a worker begins.
    epoch = state.epoch if state.is_current else f"after {state.epoch}"
    seq = state.last_seq if least.seq is None else min(state.last_seq, least.seq - 1)
    return LogMark(state.last_seq, LogPosition(seq, now if least.at is None else min(now, least.at), epoch))


class _Least:
    """The least seq and time (ms) of events, None for no event."""

    def __init__(self) -> None:
        self.seq: int | None = None
        self.at: int | None = None

    def add(self, seq: int, at: int) -> None:
        """Count an event."""
        self.seq = seq if self.seq is None else min(self.seq, seq)
        self.at = at if self.at is None else min(self.at, at)

    def keys(self, rows: Iterator[Any]) -> Iterator[str]:
        """Count events, and yield their keys."""
        for key, seq, received_at in rows:
            self.add(seq, received_at)
            yield key


def _undelivered(
    connection: sa.Connection, target_id: int, in_bucket: Sequence[sa.ColumnElement[bool]]
) -> Iterator[Any]:
    """Yield key, seq and time of the events that are in flight to a target."""
    e, p = tables.events.c, tables.parked.c
    events = sa.select(e.key, e.seq, e.received_at)
    # One query for each cursor: MySQL and MariaDB start an index scan at a seq only if it is a constant.
    windows, replays = unread_of_targets(connection, [target_id]), list(replay_partitions(connection, target_id))
    queries = [
        events.join(tables.parked, sa.and_(p.partition == e.partition, p.seq == e.seq)).where(p.target_id == target_id)
    ]
    queries += [
        events.where(e.partition == one.partition, e.seq > one.after, e.seq <= one.until, is_for(target_id))
        for one in windows
    ]
    queries += [
        events.where(
            e.partition == one.partition, e.seq > one.position, e.seq <= one.until, is_for(target_id), *selected(one)
        )
        for one in replays
    ]
    streamed = connection.execution_options(yield_per=_STREAMED_ROWS)
    for query in queries:
        yield from streamed.execute(query.where(*in_bucket))


def _find_young(connection: sa.Connection, last_seq: int, since: int, least: _Least) -> None:
    """Count the events that were received since a time (ms): read the log backwards, ever more of it.

    What is older than all of a part that is read cannot be younger: hosts' clocks differ by less.
    """
    e, until, size = tables.events.c, last_seq, _YOUNG_SEQS
    partitions = log_head.read(connection).partitions
    ages = sa.select(sa.func.min(e.seq), sa.func.min(e.received_at), sa.func.max(e.received_at))
    while until > 0:
        part = ages.where(e.partition.in_(range(partitions)), e.seq > until - size, e.seq <= until)
        seq, oldest, newest = connection.execute(part).one()
        if newest is not None and newest < since:
            return
        if newest is not None:
            least.add(seq, oldest)
        until, size = until - size, 2 * size


def problem_of_position(database: Database, position: LogPosition, retention: int) -> str:
    """Return why the log may lack events after a position, if it keeps them for `retention` (ms); "" if it has all."""
    with database.snapshot() as connection:
        now, state = database_now(connection), log_head.read_state(connection)
    if not state.still_has(position.epoch, position.seq):
        return "the log may have lost events since the last run: the outbox was restored, or has failed over"
    # The margin is for what leaves the log while it is read.
    if position.at < now - retention + min(_MARGIN, retention // 10):
        return "events since the last run may have left the log"
    return ""


def keys_named(database: Database, target: TargetId, bucket: str, *, after: int, until: int) -> Iterator[str]:
    """Yield the keys of the bucket's events after a seq, up to another, that go to a target or change the content.

    A key may come again. Some of them are in memory at a time, however many there are. Raises `UnknownTarget`.
    """
    e = tables.events.c
    with database.snapshot() as connection:
        target_id = find_target(connection, target).row_id
        partitions = log_head.read(connection).partitions
        named = sa.select(e.key).where(
            e.partition.in_(range(partitions)), e.seq > after, e.seq <= until, e.bucket == bucket,
            sa.or_(is_for(target_id), is_named(e.name, _CONTENT)),
        ).distinct()  # fmt: skip
        yield from connection.execution_options(yield_per=_STREAMED_ROWS).execute(named).scalars()


def keys_recorded_since(
    database: Database, bucket: str, mark: LogMark, *, received_at: int | None = None
) -> Iterator[str]:
    """Yield the keys of the bucket's events after a mark; with `received_at` (ms) also of those received since.

    A key may come again. Some of them are in memory at a time, however many there are. Raises `BadListing` if the
    outbox has become an older state of itself since: events that are newer than the listing may have older seqs.
    """
    e, seq = tables.events.c, mark.seq
    with database.snapshot() as connection:  # PostgreSQL streams within a transaction only
        if not log_head.read_state(connection).still_has(mark.position.epoch, seq):
            raise BadListing("the outbox was restored, or has failed over, since the listing began; run it again")
        partitions = log_head.read(connection).partitions
        # By partition, because the primary key begins with it: this reads only the new part of the log.
        later = sa.select(e.key).where(e.partition.in_(range(partitions)), e.seq > seq, e.bucket == bucket).distinct()
        streamed = connection.execution_options(yield_per=_STREAMED_ROWS)
        yield from streamed.execute(later).scalars()
        if received_at is not None:
            earlier = sa.select(e.key).where(e.received_at >= received_at, e.bucket == bucket).distinct()
            yield from streamed.execute(earlier).scalars()


def last_seq_before(database: Database, received_at: int) -> int:
    """Return the seq of the last event that was received before a time (ms), 0 for none; reads the whole log."""
    e = tables.events.c
    with database.reading() as connection:
        seq = connection.execute(sa.select(sa.func.max(e.seq)).where(e.received_at < received_at)).scalar_one()
    return int(seq or 0)


def newest_sequencers(
    database: Database, bucket: str, keys: Sequence[str], *, excluding_source: str = "", mirror: TargetId | None = None
) -> dict[str, str]:
    """Return the greatest comparable sequencer of each key in the log; keys without one are left out.

    Events of the source `excluding_source` do not count. With `mirror` it is also what this target knows of versioned
    keys, whose events may have left the log.
    """
    e, newest = tables.events.c, dict[str, str]()
    by_hash = {key_hash(bucket, key): key for key in keys}
    with database.reading() as connection:
        for hashes in chunks(list(by_hash)):
            query = sa.select(e.key, e.bucket, e.sequencer).where(e.key_hash.in_(hashes), e.sequencer != "")
            if excluding_source:
                query = query.where(e.record.not_like(f'%"eventSource":"{excluding_source}"%'))
            for row in connection.execute(query):
                if row.bucket == bucket and row.sequencer > newest.get(row.key, ""):
                    newest[row.key] = row.sequencer
        if mirror is not None:
            for key, latest in _known_latest(connection, mirror, bucket, by_hash).items():
                newest[key] = max(latest, newest.get(key, ""))
    return newest


def _known_latest(
    connection: sa.Connection, mirror: TargetId, bucket: str, by_hash: Mapping[int, str]
) -> dict[str, str]:
    """Return the greatest sequencer that a mirror knows of each versioned key, by key; `by_hash` are the keys."""
    partitions = log_head.read(connection).partitions
    objects = (ObjectKey(bucket, key, hashed % partitions, hashed) for hashed, key in by_hash.items())
    digests = {(one.partition, one.digest): one.key for one in objects}
    v, target_id = tables.object_versions.c, find_target(connection, mirror).row_id
    latest = {}
    for some in chunks(list(digests)):
        ids, within = [digest for _, digest in some], sorted({partition for partition, _ in some})
        query = sa.select(v.partition, v.id, v.state, v.trimmed)
        for row in connection.execute(query.where(v.target_id == target_id, v.partition.in_(within), v.id.in_(ids))):
            if (row.partition, row.id) in digests and (known := key_state(row).latest):
                latest[digests[row.partition, row.id]] = known
    return latest


def unchanged_since(seq: int) -> Guard:
    """Return a guard that refuses an event if its object changed after a seq; check and insert are atomic.

    Events without effect on the content do not count as a change, nor does the removal of another version, nor do
    repairs. Raises `LogLost` if the log ends before that seq: changes since may have others that came before it.
    """
    e = tables.events.c

    def changed(connection: sa.Connection, events: Sequence[Event]) -> set[str]:
        last_seq = log_head.read(connection).last_seq - len(events)  # those of the events are reserved already
        if last_seq < seq:
            raise LogLost(seq, last_seq)
        changes: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for hashes in chunks(list({key_hash(event.bucket, event.key) for event in events})):
            query = sa.select(e.bucket, e.key, e.name, e.version).where(e.key_hash.in_(hashes), e.seq > seq)
            for row in connection.execute(query.where(is_named(e.name, _CONTENT), e.record.not_like(_OWN_EVENTS))):
                changes.setdefault((row.bucket, row.key), []).append((row.name, row.version))
        return {
            event.id
            for event in events
            if any(_changes(event, *change) for change in changes.get((event.bucket, event.key), ()))
        }

    return changed


def _changes(event: Event, name: str, version: str) -> bool:
    """Return whether a change of the object may have outdated the event."""
    is_of_another = content_change(name) is ContentChange.REMOVED and is_concrete(version) and version != event.version
    return not (is_of_another and is_concrete(event.version))
