"""List the events that are retried, have them tried at once, or give them up: they become dead letters.

Of each object with parked events only the oldest, the head, is retried; the others wait behind it.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any, NamedTuple

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
from app.outbox.policies import RETRIES
from app.resources.declaration import set_members
from app.resources.retry import RetryFilter

# Changes retried events of a target, and returns how many still were.
_Transition = Callable[[sa.Connection, int, Collection[LogPosition]], int]


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
        return self._each(which, _operation("retry.now", "due", which), transitions.make_due)

    def give_up(self, which: RetryFilter) -> int:
        """Make dead letters of retried events, and return their number.

        The next event of the same object is retried at once. A worker that has one of these partitions may be sending
        such an event: its lease is revoked, so it settles nothing, and its partition waits until the lease expires.
        """
        return self._each(which, _operation("retry.give_up", "given_up", which), transitions.give_up)

    def _each(self, which: RetryFilter, operation: audit.CountedOperation, transition: _Transition) -> int:
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


def _operation(action: str, verb: str, which: RetryFilter) -> audit.CountedOperation:
    resource = f"target:{which.target}" if which.target else "retries:"
    return audit.CountedOperation(action, resource, verb, set_members(which))
