"""Move cursors over events of other targets.

Otherwise each search for work would scan the same events again, and never get past its window.
"""

import time
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import sqlalchemy as sa

from app.outbox import log_head, tables
from app.outbox.delivery.isolation import TargetIsolation
from app.outbox.delivery.log_ahead import WINDOW, Look, events_ahead
from app.outbox.engine.database import Database
from app.outbox.markers import WHOLE_LOG

_BEHIND = 1000  # seqs that a cursor may lag behind the log before it is moved
_SECONDS = 0.5  # for all targets together; the next run continues


class _Cursor(NamedTuple):
    target_id: int
    partition: int
    position: int


def advance_cursors(database: Database, isolation: TargetIsolation, now: int) -> bool:
    """Move cursors that lag behind the log and are not leased up to the next event of their target.

    Each step scans one window of the log. A run ends after about half a second; the next one continues, starting with
    a random target. Returns whether a cursor was moved.
    """
    c = tables.cursors.c
    with database.reading() as connection:
        head = log_head.read(connection).last_seq
        rows = connection.execute(
            sa.select(c.target_id, c.partition, c.position).where(
                c.replay_id == WHOLE_LOG, c.leased_until < now, c.position < head - _BEHIND
            )
        ).all()
    lagging: dict[int, list[_Cursor]] = {}
    for row in rows:
        lagging.setdefault(row.target_id, []).append(_Cursor(*row))
    ends = time.monotonic() + _SECONDS
    moved = 0

    def advance(target_ids: Sequence[int]) -> None:
        nonlocal moved
        moved += _advance(database, [cursor for target in target_ids for cursor in lagging[target]], head, now, ends)

    some = list(lagging)
    Random().shuffle(some)  # noqa: S311 - so that none is always the last
    isolation.run(some, advance)
    return bool(moved)


def _advance(database: Database, cursors: Sequence[_Cursor], head: int, now: int, ends: float) -> int:
    """Advance these cursors; return how many were moved."""
    reached = {cursor: cursor.position for cursor in cursors}
    going = list(cursors)
    with database.reading() as connection:
        while going and time.monotonic() < ends:
            looks = [
                Look(cursor.target_id, cursor.partition, reached[cursor], min(reached[cursor] + WINDOW, head))
                for cursor in going
            ]
            ahead = events_ahead(connection, looks)
            for cursor, look in zip(going, looks, strict=True):
                own = ahead.get((cursor.target_id, cursor.partition))
                reached[cursor] = own[0] - 1 if own else look.until
            going = [
                cursor
                for cursor in going
                if (cursor.target_id, cursor.partition) not in ahead and reached[cursor] < head
            ]
    moved = sorted((cursor, seq) for cursor, seq in reached.items() if seq > cursor.position)
    if moved:
        with database.writing() as connection:
            for cursor, seq in moved:
                connection.execute(_move(cursor, seq, now))
    return len(moved)


def _move(cursor: _Cursor, seq: int, now: int) -> sa.Update:
    c = tables.cursors.c
    return (
        tables.cursors.update()
        .where(c.target_id == cursor.target_id, c.partition == cursor.partition, c.replay_id == WHOLE_LOG)
        .where(c.position == cursor.position, c.leased_until < now)
        # If every event was folded, none is missed now: the skipped events belong to other targets.
        .values(position=seq, folded=sa.case((c.folded >= cursor.position, seq), else_=c.folded))
    )
