"""List, replay or delete dead letters: events that are no longer retried (a target's dead letter queue)."""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec
import orjson
import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox import audit, tables
from app.outbox.delivery import transitions
from app.outbox.engine.database import Database
from app.outbox.engine.many_rows import chunks
from app.outbox.log.reading import Reserve, reserve_nothing, small_record, within_budget
from app.outbox.policies import DEAD_LETTERS
from app.resources.dead_letter import (
    MAX_COUNTED,
    MAX_REASONS,
    DeadLetter,
    DeadLetterFilter,
    DeadLetterPage,
    DeadLetterReason,
    DeadLetterReasons,
    ReasonsQuery,
    failed_attempts,
)
from app.resources.declaration import set_members

# Changes dead letters of a target, by their numbers, and returns how many there still were.
_Transition = Callable[[sa.Connection, int, Sequence[int]], int]


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
        return self._each(which, _operation("replay", "replayed", which), transitions.replay)

    def purge(self, which: DeadLetterFilter) -> int:
        """Delete dead letters, counting them as purged in the target's counters; return their number."""
        return self._each(which, _operation("purge", "purged", which), transitions.purge)

    def _each(self, which: DeadLetterFilter, operation: audit.CountedOperation, transition: _Transition) -> int:
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


def _operation(action: str, verb: str, which: DeadLetterFilter) -> audit.CountedOperation:
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
