"""List the events that are retried and the dead letters, and have them tried again, given up, or deleted.

Of each object with parked events only the oldest, the head, is retried; the others wait behind it. An event that is
given up, or that was tried as often as its target allows, is a dead letter: it is no longer retried.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any, NamedTuple

import msgspec
import orjson
import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox import audit, tables
from app.outbox.column_values import NEVER, WHOLE_LOG
from app.outbox.delivery import transitions
from app.outbox.delivery.due_work import PartitionOf, with_parked
from app.outbox.delivery.logged_events import LogPosition
from app.outbox.engine.database import Database
from app.outbox.engine.many_rows import MAX_SEARCHES, chunks
from app.outbox.log.reading import Reserve, reserve_nothing, small_record, within_budget
from app.outbox.policies import DEAD_LETTERS, RETRIES
from app.resources.declaration import set_members
from app.resources.undelivered import (
    MAX_COUNTED,
    MAX_REASONS,
    DeadLetter,
    DeadLetterFilter,
    DeadLetterPage,
    DeadLetterReason,
    DeadLetterReasons,
    ReasonsQuery,
    RetryFilter,
    failed_attempts,
)

# Changes retried events of a target, and returns how many still were.
_OfRetries = Callable[[sa.Connection, int, Collection[LogPosition]], int]


class RetryPlace(NamedTuple):
    """The place of an event in a listing: by target, partition, and the time of the next attempt."""

    target_id: int
    partition: int
    not_before: int
    seq: int


@dataclass(frozen=True, slots=True)
class Retry:
    """An event that is retried. Times are ms; `next_try` is 0 if it is due at once.

    `attempts` is 0 if the target was unavailable for it. `history` has the last attempts, as (time, reason).
    """

    place: RetryPlace
    target: TargetId
    event_id: str
    name: str
    bucket: str
    key: str
    attempts: int
    first_tried: int
    last_tried: int
    history: Sequence[tuple[int, str]]

    @property
    def next_try(self) -> int:
        """When it is due, while its target is available."""
        return self.place.not_before


@dataclass(frozen=True, slots=True)
class RetryPage:
    """A page of retried events; `next` is the place after which the next one begins, None at the end.

    A page may have fewer events than asked for, or none, and still have a next one: what it reads is bounded.
    """

    retries: Sequence[Retry]
    next: RetryPlace | None


class Retries:
    """The retried events of every target."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def page(self, which: RetryFilter, *, limit: int = 100, after: RetryPlace | None = None) -> RetryPage:
        """Return up to `limit` retried events, by target, partition and time of the next attempt.

        An event whose time changes meanwhile may be missing or be on two pages.
        """
        matching: list[Retry] = []
        read = 0
        last = after
        with self._database.reading() as connection:
            for some in self._heads(connection, which, after):
                read += max(RETRIES.min_counted_heads, len(some))
                for retry in some:
                    last = retry.place
                    if _matches(retry, which):
                        matching.append(retry)
                        if len(matching) == limit:
                            return RetryPage(matching, last)
                if read >= RETRIES.max_heads:
                    return RetryPage(matching, last)
        return RetryPage(matching, None)

    def try_now(self, which: RetryFilter) -> int:
        """Make retried events due at once, and return their number; attempts stay counted.

        An unavailable target gets them when it is available again.
        """
        return self._each(which, _retries_operation("retry.now", "due", which), transitions.make_due)

    def give_up(self, which: RetryFilter) -> int:
        """Make dead letters of retried events, and return their number.

        The next event of the same object is retried at once. A worker that has one of these partitions may be sending
        such an event: its lease is revoked, so it settles nothing, and its partition waits until the lease expires.
        """
        return self._each(which, _retries_operation("retry.give_up", "given_up", which), transitions.give_up)

    def _each(self, which: RetryFilter, operation: audit.CountedOperation, transition: _OfRetries) -> int:
        """Make a transition of the selected events, some in each transaction; return their number."""
        for target_id, places in self._chosen(which):
            positions = [(place.partition, place.seq) for place in places]
            operation.add(self._database, transition, target_id, positions)
        return operation.total

    def _chosen(self, which: RetryFilter) -> Iterator[tuple[int, Sequence[RetryPlace]]]:
        """Choose before any change: an event that becomes a head by the change is not meant."""
        with self._database.reading() as connection:
            heads = self._heads(connection, which, None)
            places = sorted(retry.place for some in heads for retry in some if _matches(retry, which))
        for target_id, group in groupby(places, key=lambda place: place.target_id):
            for some in chunks(list(group)):
                yield target_id, some

    def _heads(
        self, connection: sa.Connection, which: RetryFilter, after: RetryPlace | None
    ) -> Iterator[Sequence[Retry]]:
        """Yield the heads after a place, a bounded number at a time."""
        if which.ids:
            yield from _heads_of_events(connection, which.ids, after)
            return
        c, t = tables.cursors.c, tables.targets.c
        cursors = (
            sa.select(c.target_id, c.partition)
            .join_from(tables.cursors, tables.targets)
            .where(c.replay_id == WHOLE_LOG)
            .order_by(c.target_id, c.partition)
        )
        if which.target is not None:
            cursors = cursors.where(t.type == which.target.type, t.name == which.target.name)
        places = [PartitionOf(*row) for row in connection.execute(cursors)]
        left = [here for here in places if after is None or here >= after[:2]]
        for here in chain.from_iterable(sorted(with_parked(connection, some)) for some in chunks(left, MAX_SEARCHES)):
            place = after if after is not None and here == after[:2] else None
            while some := _heads_of_partition(connection, here, place):
                yield some
                place = some[-1].place
                if len(some) < RETRIES.batch_heads:
                    break


def _select_retries() -> sa.Select[Any]:
    p, e, t = tables.parked.c, tables.events.c, tables.targets.c
    return (
        sa.select(tables.parked, e.id, e.name, e.bucket, e.key, t.type, t.name.label("target_name"))
        .join_from(tables.parked, tables.targets, p.target_id == t.id)
        .join(tables.events, sa.and_(e.partition == p.partition, e.seq == p.seq))
        .where(p.not_before < NEVER)
    )


def _heads_of_partition(connection: sa.Connection, here: PartitionOf, after: RetryPlace | None) -> Sequence[Retry]:
    p = tables.parked.c
    query = _select_retries().where(p.target_id == here.target_id, p.partition == here.partition)
    if after is not None:
        later = sa.and_(p.not_before == after.not_before, p.seq > after.seq)
        query = query.where(p.not_before >= after.not_before, sa.or_(p.not_before > after.not_before, later))
    return [_retry(row) for row in connection.execute(query.order_by(p.not_before, p.seq).limit(RETRIES.batch_heads))]


def _heads_of_events(
    connection: sa.Connection, ids: Sequence[str], after: RetryPlace | None
) -> Iterator[Sequence[Retry]]:
    heads: list[Retry] = []
    for some in chunks(sorted(set(ids))):
        heads += [_retry(row) for row in connection.execute(_select_retries().where(tables.events.c.id.in_(some)))]
    yield [retry for retry in sorted(heads, key=lambda retry: retry.place) if after is None or retry.place > after]


def _matches(retry: Retry, which: RetryFilter) -> bool:
    return (
        which.target in (None, retry.target)
        and which.bucket in ("", retry.bucket)
        and retry.key.startswith(which.prefix)
    )


def _retry(row: Any) -> Retry:
    return Retry(
        place=RetryPlace(row.target_id, row.partition, row.not_before, row.seq),
        target=TargetId(row.type, row.target_name),
        event_id=row.id,
        name=row.name,
        bucket=row.bucket,
        key=row.key,
        attempts=row.attempts,
        first_tried=row.first_tried,
        last_tried=row.last_tried,
        history=[(at, reason) for at, reason in orjson.loads(row.history)],
    )


def _retries_operation(action: str, verb: str, which: RetryFilter) -> audit.CountedOperation:
    resource = f"target:{which.target}" if which.target else "retries:"
    return audit.CountedOperation(action, resource, verb, set_members(which))


# Changes dead letters of a target, by their numbers, and returns how many there still were.
_OfDeadLetters = Callable[[sa.Connection, int, Sequence[int]], int]


class DeadLetters:
    """The dead letters of every target."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def list(self, which: DeadLetterFilter, *, limit: int = 100, after: int = 0) -> list[DeadLetter]:
        """Return the first `limit` dead letters with a number above `after`, sorted by number."""
        query = _joined(which).where(tables.dead_letters.c.id > after).order_by(tables.dead_letters.c.id).limit(limit)
        letters: list[DeadLetter] = []
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
            while rows:
                some, count = _letters(connection, rows)
                letters, rows = letters + some, rows[count:]
        return letters

    def page(
        self,
        which: DeadLetterFilter,
        *,
        limit: int = 100,
        after: int = 0,
        region: str = "",
        reserve: Reserve = reserve_nothing,
    ) -> DeadLetterPage:
        """Return dead letters as `list` does, but of a bounded part of them, and where to continue.

        `region` is that of their targets' ARNs.

        There are fewer if their records exceed the budget of bytes, which has one dead letter at least. `reserve` is
        told of these bytes before they are read.
        """
        d = tables.dead_letters.c
        read, matching, window, until = 0, list[Any](), limit, time.monotonic() + DEAD_LETTERS.max_seconds
        with self._database.reading() as connection:
            while True:
                some = sa.select(d.id).where(d.id > after).order_by(d.id).limit(window).subquery()
                last, count = connection.execute(sa.select(sa.func.max(some.c.id), sa.func.count())).one()
                if not count:
                    return _page(connection, matching, None, region, reserve)
                here = _joined(which).where(d.id > after, d.id <= last).order_by(d.id).limit(limit - len(matching))
                matching += connection.execute(here)
                if len(matching) == limit:
                    return _page(connection, matching, matching[-1].id, region, reserve)
                if count < window:
                    return _page(connection, matching, None, region, reserve)
                read, after, window = read + count, last, min(DEAD_LETTERS.window_letters, 4 * window)
                is_late = read >= DEAD_LETTERS.min_letters and time.monotonic() > until
                if is_late or read >= DEAD_LETTERS.max_letters:
                    return _page(connection, matching, after, region, reserve)

    def reasons(
        self, which: ReasonsQuery, *, newest: int = MAX_COUNTED, limit: int = MAX_REASONS, region: str = ""
    ) -> DeadLetterReasons:
        """Count those of the `newest` dead letters, of one target or of all, by target and reason: `limit` counts."""
        d, t, target = tables.dead_letters.c, tables.targets.c, which.target
        last = sa.select(d.target_id, d.reason, d.last_tried).order_by(d.id.desc()).limit(newest)
        if target is not None:
            named = sa.select(t.id).where(t.type == target.type, t.name == target.name)
            last = last.where(d.target_id == named.scalar_subquery())
        one = last.subquery()
        is_within = sa.and_(one.c.last_tried >= which.since, one.c.last_tried < which.before)
        number = sa.func.sum(sa.case((is_within, 1), else_=0)).label("number")
        last_tried = sa.func.max(sa.case((is_within, one.c.last_tried), else_=0)).label("last_tried")
        query = (
            sa.select(one.c.target_id, one.c.reason, number, last_tried, sa.func.count().label("looked_at"))
            .group_by(one.c.target_id, one.c.reason)
            .order_by(number.desc(), one.c.target_id, one.c.reason)
        )
        with self._database.snapshot() as connection:
            ids = {row.id: TargetId(row.type, row.name) for row in connection.execute(sa.select(t.id, t.type, t.name))}
            rows = connection.execute(query).all()
        reasons = [
            DeadLetterReason.of(row, target=ids[row.target_id].arn(region), dead_letters=int(row.number))
            for row in rows
            if row.number
        ]
        counted = sum(row.looked_at for row in rows)
        return DeadLetterReasons(reasons=reasons[:limit], looked_at=counted, complete=counted < newest)

    def replay(self, which: DeadLetterFilter) -> int:
        """Park dead letters again, due at once and in order per object; return their number.

        They keep their ids and history, but their attempts and their time (`max_age`) are counted from 0 again. They
        do not count against the target's `queue_limit`, so that no live event is discarded because of them.
        """
        return self._each(which, _dead_letters_operation("replay", "replayed", which), transitions.replay)

    def purge(self, which: DeadLetterFilter) -> int:
        """Delete dead letters, counting them as purged in the target's counters; return their number."""
        return self._each(which, _dead_letters_operation("purge", "purged", which), transitions.purge)

    def _each(self, which: DeadLetterFilter, operation: audit.CountedOperation, transition: _OfDeadLetters) -> int:
        """Make a transition of the selected dead letters, some in each transaction; return their number."""
        for target_id, ids in self._by_target(which):
            operation.add(self._database, transition, target_id, ids)
        return operation.total

    def _by_target(self, which: DeadLetterFilter) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield the selected dead letters' numbers, as many as one transaction changes, with their target's row id."""
        d = tables.dead_letters.c
        with self._database.reading() as connection:
            rows = connection.execute(_joined(which, d.target_id, d.id).order_by(d.target_id, d.id)).all()
        for target, group in groupby(rows, key=lambda row: row.target_id):
            for some in chunks([row.id for row in group]):
                yield target, some


def _dead_letters_operation(action: str, verb: str, which: DeadLetterFilter) -> audit.CountedOperation:
    resource = f"target:{which.target}" if which.target else "dead_letters:"
    return audit.CountedOperation(f"dead_letter.{action}", resource, verb, set_members(which))


def _is_event() -> sa.ColumnElement[bool]:
    d, e = tables.dead_letters.c, tables.events.c
    return sa.and_(e.partition == d.partition, e.seq == d.seq)


def _joined(which: DeadLetterFilter, *columns: Any) -> sa.Select[Any]:
    d, e, t = tables.dead_letters.c, tables.events.c, tables.targets.c
    selected = columns or (
        tables.dead_letters,
        e.name,
        e.bucket,
        e.key,
        small_record,
        t.type,
        t.name.label("target_name"),
    )
    query = (
        sa.select(*selected)
        .join_from(tables.dead_letters, tables.targets, d.target_id == t.id)
        .join(tables.events, _is_event())
        .where(d.last_tried >= which.since, d.last_tried < which.before)
    )
    if which.ids:
        query = query.where(d.id.in_(which.ids))
    if which.target is not None:
        query = query.where(t.type == which.target.type, t.name == which.target.name)
    if which.bucket:
        query = query.where(e.bucket == which.bucket)
    if which.prefix:
        query = query.where(sa.func.substr(e.key, 1, len(which.prefix)) == which.prefix)
    if which.reason:
        query = query.where(d.reason.contains(which.reason, autoescape=True))
    return query


def _page(
    connection: sa.Connection, rows: Sequence[Any], following: int | None, region: str, reserve: Reserve
) -> DeadLetterPage:
    letters, count = _letters(connection, rows, region, reserve)
    return DeadLetterPage(dead_letters=letters, next=rows[count - 1].id if count < len(rows) else following)


def _letters(
    connection: sa.Connection, rows: Sequence[Any], region: str = "", reserve: Reserve = reserve_nothing
) -> tuple[list[DeadLetter], int]:
    """Return the dead letters of the first rows, within the budget of bytes, and the number of these rows."""
    records = within_budget(connection, ((row.partition, row.seq, row.record) for row in rows), reserve)
    paired = zip(rows, records, strict=False)
    return [_letter(row, record, region) for row, record in paired if record is not None], len(records)


def _letter(row: Any, record: str, region: str) -> DeadLetter:
    return DeadLetter.of(
        row,
        target=TargetId(row.type, row.target_name).arn(region),
        event=row.name,
        history=failed_attempts(orjson.loads(row.history)),
        record=msgspec.Raw(record),
    )
