"""Watched buckets: what is known of each, and how far its listings came, in the transactions of the events found.

What is known of a bucket is in chunks, each of some keys that follow each other. The events of what was found in a
chunk are recorded in the transaction that replaces it, so a run that is killed has recorded them or will find them
again, and no file has to agree with the outbox, also not after it was restored to an older state.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
import sqlalchemy as sa

from app.events.frontends.frontend import find
from app.events.model import Event
from app.events.names import ContentChange, selectors_with
from app.events.order import Entry as LogEntry
from app.listings import snapshot
from app.listings.comparison import Chunk, Replacement, put_off
from app.listings.differences import Counts, LoggedEvent, Run, compared_with, outdates
from app.listings.limits import BadListing
from app.outbox import log_head, tables
from app.outbox.column_values import clean_reason
from app.outbox.delivery.leases import LeaseLost, at_least
from app.outbox.engine.clock import DatabaseClock, database_now
from app.outbox.engine.database import Database
from app.outbox.engine.many_rows import chunks, repeated_after_deadlock, write_alone
from app.outbox.log.append import Guard, Log, QueueFull, Receipt, key_hash
from app.outbox.log.reading import TOO_LONG, first_seq, is_named, within_budget
from app.outbox.policies import APPEND, RETENTION
from app.outbox.reconcile.runs import BACKFILLED
from app.outbox.sources.intake import TargetFull
from app.outbox.sources.rows import SourceLease, fence, paused_itself
from app.quantities import count_noun

_S, _W, _C, _E = tables.sources.c, tables.watched_buckets.c, tables.watched_chunks.c, tables.events.c
_CONTENT = selectors_with(*set(ContentChange) - {ContentChange.NOTHING})
_FOR_ONE_TARGET = '%"x-bucketwire-target":%'  # in the record of a repair or a backfill, which other targets do not get
_DAY = 86_400_000  # ms
_OF_ALL_TARGETS = (is_named(_E.name, _CONTENT), _E.record.not_like(_FOR_ONE_TARGET))
_OF_BACKFILLS_TOO = (
    _OF_ALL_TARGETS[0],
    sa.or_(_OF_ALL_TARGETS[1], _E.record.like('%"eventSource":"bucketwire:backfill"%')),
)
_Conditions = Sequence[sa.ColumnElement[bool]]
_SCANNED = 10_000  # seqs of one query
_MAX_NAMED_VERSIONS = 1_000  # in one query
_MAX_LOGGED = 5_000  # events that are in memory at a time, and of a key how many of its newest are looked at
_MAX_COMMITTED = APPEND.max_group_events  # in one commit, during which nothing else is recorded
FOUND_KINDS = ("created", "changed", "removed")  # of differences that no event explains


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
    bucket: str = ""
    skipped: int = 0
    lapsed_at: int = 0

    def is_kept(self, now: int) -> bool:
        """Return whether the log keeps the bucket's events for the next listing."""
        since = self.due_at if self.complete else max(self.due_at, self.began_at)
        return bool(self.bucket) and since > now - RETENTION.overdue_listing_ms

    def complete_since(self, now: int, retention_ms: int) -> int:
        """Return from when on (ms) the log has each of the bucket's events; 0: it has all since the last listing."""
        if not self.is_kept(now):
            return now - retention_ms
        since = self.lapsed_at if self.complete else max(self.lapsed_at, self.began_at)
        return since - retention_ms if since else 0

    def found_since_yesterday(self, now: int) -> int:
        """Return how many differences that no event explained were found today and yesterday, in UTC."""
        today = now // _DAY
        return self.found_on_day * (self.day >= today - 1) + self.found_before * (self.day >= today)


@dataclass(slots=True)
class Skipped:
    """Entries of a listing that no event can have: how many there are, and the key of the first."""

    count: int = 0
    key: str = ""

    def add(self, keys: Sequence[str]) -> None:
        """Count entries with these keys."""
        self.key = keys[0] if keys and not self.count else self.key
        self.count += len(keys)

    def __str__(self) -> str:
        if not self.count:
            return ""
        skipped = f"{count_noun(self.count, 'object')} of its listing skipped"
        return f"{skipped}, such as the key {self.key!r:.100}: no event can have it"


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
            return _read(connection, lease)

    @repeated_after_deadlock
    def begin(self, lease: SourceLease, bucket: str) -> None:
        """Note that a bucket's first listing begins: the log keeps the bucket's events for it. Raises `LeaseLost`.

        Of another listing, or the next try, nothing is written.
        """
        now = self._clock()
        with self._database.committing() as connection:
            known = _read(connection, lease)
            if not known.bucket:
                fence(connection, lease, leased_until=at_least(_S.leased_until, now + self._lease_ms))
                _write(connection, lease.stored.row_id, {"bucket": bucket, "began_at": now}, {})

    def log_state(self) -> log_head.LogState:
        """Return the log's end and epoch."""
        with self._database.reading() as connection:
            return log_head.read_state(connection)

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

    def check_backfill(self, lease: SourceLease, bucket: str, prefix: str, retention_ms: int) -> None:
        """Raise `BadListing` unless the log has what a backfill of a bucket, or of some keys of it, has sent.

        It has all events that are younger than its retention, and older ones that it keeps for other reasons.
        """
        r = tables.reconciliations.c
        query = sa.select(r.prefix, r.started_at, r.finished_at).where(r.bucket == bucket, r.state == BACKFILLED)
        now = self._clock()
        with self._database.reading() as connection:
            runs = [row for row in connection.execute(query) if prefix.startswith(row.prefix)]
            known, partitions = _read(connection, lease), log_head.read(connection).partitions
        kept_since = known.complete_since(now, retention_ms)
        first = (_E.partition.in_(range(partitions)), _E.seq == first_seq(self._database, partitions))
        with self._database.reading() as connection:
            begins = connection.execute(sa.select(_E.received_at).where(*first)).scalar()
        if begins is None or not any(run.started_at >= kept_since and run.finished_at >= begins for run in runs):
            lacking = "its events may have left the log" if runs else "none has ended"
            raise BadListing(
                f"there is no backfill of {bucket} to begin with: {lacking}; run `bucketwire backfill {bucket}` again, "
                "or set initial to events or remember"
            )

    def logged(
        self, bucket: str, versions: Mapping[str, Collection[str]], *, by_backfill: bool = False
    ) -> Iterator[Mapping[str, Sequence[LoggedEvent]]]:
        """Yield the log's events that change the content of each of some keys, for some keys at a time, in order.

        A key's events are in the order of the log, and of one that has very many they are the newest and those of the
        `versions` that are named with it; none is of a repair, and one of a backfill only with `by_backfill`. Only the
        one that an object without a version has to be compared with says its ETag and size.
        """
        waiting, conditions = [*chunks(versions)][::-1], _OF_BACKFILLS_TOO if by_backfill else _OF_ALL_TARGETS
        while waiting:
            some = waiting.pop()
            with self._database.reading() as connection:
                rows = connection.execute(_logged_events(bucket, some, conditions)).all()
                if len(rows) > _MAX_LOGGED and len(some) > 1:
                    middle = len(some) // 2
                    waiting += [some[middle:], some[:middle]]
                    continue
                if len(rows) > _MAX_LOGGED:
                    newest = rows[:_MAX_LOGGED]
                    older = _of_keys(bucket, some, conditions)
                    rows = [*newest, *_older_of_versions(connection, older, versions[some[0]], newest)]
                found: dict[str, list[LoggedEvent]] = {key: [] for key in some}
                for row in sorted(rows, key=lambda row: row.seq):
                    if row.bucket == bucket and row.key in found:
                        entry = LogEntry(row.seq, row.name, row.version, row.sequencer)
                        found[row.key].append(LoggedEvent(entry, row.time))
                _add_contents(connection, found, {row.seq: row.partition for row in rows})
            yield found

    def replace(self, lease: SourceLease, replacement: Replacement, run: Run) -> Receipt:
        """Replace chunks, record events and count these in one commit.

        About a key that has had an event since the listing began it decides nothing, also if the event came after it
        was compared: such a key stays as it was known, and what was found of it is not counted.

        Raises `LeaseLost`, also if the outbox has become an older state of itself since the listing began, and
        `TargetFull`; then nothing is written.

        Of very many events, or more than a target ever takes at once, most are recorded by commits of their own before.
        If the last one fails, they explain what was found, and replacing the same again records them once.
        """
        own = frozenset(event.id for event in replacement.events)
        most, receipt = _MAX_COMMITTED, Receipt()
        while True:
            compared = self.log_state().last_seq
            if keys := self._outdated(replacement.events, run.seq, own):
                replacement = self._put_off(lease, replacement, keys)
            some, left = replacement.events[:most], replacement.events[most:]
            try:
                part = Replacement([], [], some) if left else replacement
                receipt.add(self._commit(lease, part, run, max(compared, run.seq), own))
            except _Overtaken:
                continue
            except TargetFull as error:
                if not error.never or len(some) == 1:
                    raise
                most = len(some) // 2
                continue
            if not left:
                return receipt
            replacement = replace(replacement, events=left)

    def _outdated(self, events: Sequence[Event], seq: int, own: Collection[str]) -> set[str]:
        with self._database.reading() as connection:
            return set(_outdated(connection, events, seq, own))

    def _put_off(self, lease: SourceLease, replacement: Replacement, keys: Collection[str]) -> Replacement:
        known = [entry for number in replacement.removed for entry in snapshot.decode(self.body(lease, number))]
        return put_off(replacement, keys, known)

    def _commit(
        self, lease: SourceLease, replacement: Replacement, run: Run, compared: int, own: Collection[str]
    ) -> Receipt:
        now = self._clock()

        def beside(connection: sa.Connection, receipt: Receipt) -> None:
            _check_log(connection, lease, run.epoch, compared + receipt.recorded)
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
                if connection.execute(tables.watched_chunks.delete().where(*mine)).rowcount != len(replacement.removed):
                    raise LeaseLost(f"source {lease.stored.source}")
            if replacement.added:
                rows = [
                    {"source_id": source_id, "number": number, "first": first.encode(), "body": body}
                    for number, first, body in replacement.added
                ]
                connection.execute(tables.watched_chunks.insert(), rows)
            found = {kind: getattr(replacement.found, kind) for kind in FOUND_KINDS}
            if any(found.values()):
                known = _read(connection, lease)
                _write(connection, lease.stored.row_id, _by_day(known, now, sum(found.values())), found)

        if not replacement.events:
            receipt = Receipt()
            write_alone(self._database, lambda connection: beside(connection, receipt))
            return receipt
        guard = _not_outdated_since(compared, own)
        [answer] = self._log.append([replacement.events], guard=guard, beside=beside)
        if isinstance(answer, QueueFull):
            raise TargetFull(answer)
        return answer

    def count_requests(self, lease: SourceLease, requests: int) -> None:
        """Add to the requests of a bucket's listings, also if somebody else has its lease by now: they were made."""
        mine = _W.source_id == lease.stored.row_id
        update = tables.watched_buckets.update().where(mine).values(requests=_W.requests + requests)
        write_alone(self._database, lambda connection: connection.execute(update))

    @repeated_after_deadlock
    def finish(
        self,
        lease: SourceLease,
        run: Run,
        counts: Counts,
        *,
        store_time: int,
        due_at: int,
        skipped: Skipped | None = None,
    ) -> None:
        """Note that a listing was compared to its end, and what of it was skipped. Raises `LeaseLost`, as `replace`.

        What was found is counted already, with each replacement.
        """
        now = self._clock()
        with self._database.committing() as connection:
            skipped = skipped or Skipped()
            reason = clean_reason(str(skipped))
            _check_log(connection, lease, run.epoch, run.seq)
            fence(connection, lease, lag=counts.pending, pulled_at=now, failures=0, error="", error_at=0, reason=reason)
            last: dict[str, Any] = {
                "bucket": run.bucket,
                "skipped": skipped.count,
                "began_at": run.began,
                "ended_at": run.ended,
                "store_time": store_time,
                "seq": run.seq,
                "due_at": due_at,
                "lapsed_at": 0,
            }
            last |= {"objects": counts.objects, "pending": counts.pending, "complete": True}
            # An approval holds for what is gone and has to wait for the end of the grace, and for nothing else.
            last["asked"] = min(_read(connection, lease).asked, counts.going)
            sums = {"explained": counts.explained, "listings": 1}
            _write(connection, lease.stored.row_id, last, sums)

    @repeated_after_deadlock
    def ask(self, lease: SourceLease, removals: int, reason: str) -> None:
        """Pause the source until an operator approves so many removals by resuming it. Raises `LeaseLost`."""
        with self._database.committing() as connection:
            fence(connection, lease, lease_token="", leased_until=0, **paused_itself(reason))
            _write(connection, lease.stored.row_id, {"asked": removals}, {})


def _check_log(connection: sa.Connection, lease: SourceLease, epoch: str, seq: int) -> None:
    """Raise `LeaseLost` unless the log still has what the listing was compared with."""
    if not log_head.read_state(connection).still_has(epoch, seq):
        source = lease.stored.source
        raise LeaseLost(f"the outbox that {source} was compared with (it was restored, or has failed over)")


def read_watched(connection: sa.Connection) -> dict[int, Watched]:
    """Return how far the listings of each watched bucket came, by the row id of the source."""
    return {row.source_id: Watched(*row) for row in connection.execute(sa.select(tables.watched_buckets))}


def make_due(connection: sa.Connection, source_id: int) -> None:
    """Have a bucket listed at once, also one of which nothing is known."""
    now, known = database_now(connection), read_watched(connection).get(source_id)
    lapsed = {"lapsed_at": now} if known and known.bucket and not known.is_kept(now) else {}
    _write(connection, source_id, {"due_at": now} | lapsed, {})


def forget(connection: sa.Connection, source_id: int) -> None:
    """Delete what is known of a watched bucket, and how far its listings came."""
    for table in (tables.watched_chunks, tables.watched_buckets):
        connection.execute(table.delete().where(table.c.source_id == source_id))


def _read(connection: sa.Connection, lease: SourceLease) -> Watched:
    return read_watched(connection).get(lease.stored.row_id) or Watched(lease.stored.row_id)


def _write(connection: sa.Connection, source_id: int, values: Mapping[str, Any], sums: Mapping[str, int]) -> None:
    changes = dict(values) | {name: _W[name] + more for name, more in sums.items()}
    update = tables.watched_buckets.update().where(_W.source_id == source_id)
    if not connection.execute(update.values(**changes)).rowcount:
        none = {column.name: 0 for column in tables.watched_buckets.c} | {"complete": False, "bucket": ""}
        row = none | {"source_id": source_id} | dict(values) | dict(sums)
        connection.execute(tables.watched_buckets.insert().values(**row))


def _by_day(known: Watched, now: int, found: int) -> dict[str, int]:
    """Return the counts of today and of the day before, with what was found now."""
    today = now // _DAY
    if known.day >= today:
        return {"found_on_day": known.found_on_day + found}
    before = known.found_on_day if known.day == today - 1 else 0
    return {"day": today, "found_on_day": found, "found_before": before}


def _logged_events(bucket: str, keys: Sequence[str], conditions: _Conditions = _OF_ALL_TARGETS) -> sa.Select[Any]:
    """Build the query for the events of some keys: one more than may be in memory, and of a single key the newest.

    Those have the greatest sequencers, so that the index has them in order, however many a key has; InnoDB's goes on
    with the primary key.
    """
    query = _of_keys(bucket, keys, conditions)
    return (query.order_by(*_NEWEST_FIRST) if len(keys) == 1 else query).limit(_MAX_LOGGED + 1)


_NEWEST_FIRST = (_E.sequencer.desc(), _E.partition.desc(), _E.seq.desc())


def _older_than(row: sa.Row[Any]) -> sa.ColumnElement[bool]:
    """Build the condition that an event comes after a key's other one, the newest first."""
    beneath = sa.or_(_E.partition < row.partition, sa.and_(_E.partition == row.partition, _E.seq < row.seq))
    # The first condition says nothing more, and is the range that databases find in the index.
    return sa.and_(_E.sequencer <= row.sequencer, sa.or_(_E.sequencer < row.sequencer, beneath))


def _of_keys(bucket: str, keys: Sequence[str], conditions: _Conditions) -> sa.Select[Any]:
    return sa.select(_E.partition, _E.seq, _E.name, _E.bucket, _E.key, _E.version, _E.sequencer, _E.time).where(
        _E.key_hash.in_({key_hash(bucket, key) for key in keys}), *conditions
    )


def _older_of_versions(
    connection: sa.Connection, of_key: sa.Select[Any], versions: Collection[str], newest: Sequence[sa.Row[Any]]
) -> list[sa.Row[Any]]:
    """Return the events of some of a key's versions that are not among its newest, which are in that order.

    No index has versions: each query reads all of the key's older events, so that those of very many versions are read
    one after the other instead.
    """
    if len(versions) <= _MAX_NAMED_VERSIONS:
        older = _older_than(newest[-1])
        return [*connection.execute(of_key.where(older, _E.version.in_(versions)))] if versions else []
    query = of_key.order_by(*_NEWEST_FIRST).limit(_MAX_LOGGED)
    for dialect in ("mysql", "mariadb"):  # MariaDB would look through the key's newer events for each page
        query = query.with_hint(tables.events, "FORCE INDEX (ix_events_key_hash_sequencer)", dialect)
    wanted, found, rows = frozenset(versions), list[sa.Row[Any]](), newest
    while rows:
        rows = connection.execute(query.where(_older_than(rows[-1]))).all()
        found += [row for row in rows if row.version in wanted]
    return found


def _add_contents(
    connection: sa.Connection, found: Mapping[str, list[LoggedEvent]], partitions: Mapping[int, int]
) -> None:
    """Read the records of the events that objects have to be compared with, for their ETags and sizes."""
    places = {}
    for events in found.values():
        if (at := compared_with(events)) is not None:
            places[events[at].entry.seq] = (events, at)
    left = [(partitions[seq], seq, "") for seq in places]
    while left:
        records = within_budget(connection, left)
        for (_, seq, _), record in zip(left, records, strict=False):
            events, at = places[seq]
            events[at] = _with_content(events[at], record or TOO_LONG)
        left = left[len(records) :]


def _with_content(event: LoggedEvent, record: str) -> LoggedEvent:
    thing = find(orjson.loads(record), "s3", "object")
    members = thing if isinstance(thing, dict) else {}
    etag, size = members.get("eTag"), members.get("size")
    return event._replace(
        etag=etag if isinstance(etag, str) and etag else None, size=size if type(size) is int else None
    )


class _Overtaken(Exception):
    """Nothing was recorded: the log has newer events of a key."""


def _not_outdated_since(seq: int, own: Collection[str]) -> Guard:
    """Return a guard that raises `_Overtaken` if an event after a seq may outdate one that is to be recorded."""

    def check(connection: sa.Connection, events: Sequence[Event]) -> Collection[str]:
        for _ in _outdated(connection, events, seq, own):
            raise _Overtaken
        return ()

    return check


def _outdated(connection: sa.Connection, events: Sequence[Event], seq: int, own: Collection[str]) -> Iterator[str]:
    """Yield the keys of events that one of the log's after a seq may outdate, perhaps several times each.

    Those with ids of our `own` outdate nothing: they were found by the same listing.
    """
    by_hash = defaultdict[int, dict[str, set[str]]](lambda: defaultdict(set))  # the versions of each key
    for event in events:
        by_hash[key_hash(event.bucket, event.key)][event.key].add(event.version)
    # By partition, because the primary key begins with it: this can read only the new part of the log.
    newer_events = (_E.partition.in_(range(log_head.read(connection).partitions)), _E.seq > seq, *_OF_ALL_TARGETS)
    query = sa.select(_E.seq, _E.id, _E.key_hash, _E.name, _E.version, _E.sequencer).where(*newer_events)
    for hashes in chunks(list(by_hash)):
        for row in connection.execute(query.where(_E.key_hash.in_(hashes))):
            if row.id in own:
                continue
            newer = LogEntry(row.seq, row.name, row.version, row.sequencer)
            yield from (key for key, versions in by_hash[row.key_hash].items() if outdates(newer, versions))
