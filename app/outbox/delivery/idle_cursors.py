"""Move cursors over events of other targets.

Otherwise each search for work would scan the same events again, and never get past its window.
"""

import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from app.outbox import log_head, tables
from app.outbox.delivery.log_ahead import WINDOW_SEQS
from app.outbox.delivery.policies import IDLE_CURSORS
from app.outbox.delivery.transitions import cursors
from app.outbox.engine.chunks import chunks
from app.outbox.engine.database import Database
from app.outbox.markers import WHOLE_LOG


class _Place(NamedTuple):
    """A position in a partition, at which many idle cursors are."""

    partition: int
    position: int


class IdleCursors:
    """Moves idle cursors. Use it from one thread at a time."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # Cursors before an event of their own target, which it waits for: to look again would find the same event.
        self._waiting: set[tuple[int, _Place]] = set()
        self._forgotten = 0.0  # when `_waiting` was emptied, by time.monotonic()
        self._idle: log_head.LogState | None = None  # the log when no cursor lagged so far behind that it had to move

    def advance(self, log: log_head.LogState, now: int) -> bool:
        """Move cursors that lag behind the log and are not leased up to the next event of their target.

        Each step scans one window of the log, once for all targets, the cursors that are farthest behind first. A run
        ends after about half a second, but not before its first step has done something, however slow the database is;
        the next one continues. Returns whether a cursor was moved.
        """
        if log == self._idle:
            return False  # no event was recorded since, and cursors do not move back
        ends = time.monotonic() + IDLE_CURSORS.run_seconds
        if time.monotonic() - self._forgotten > IDLE_CURSORS.forget_interval_seconds:
            self._waiting.clear()
            self._forgotten = time.monotonic()
        with self._database.reading() as connection:
            partitions = log_head.read(connection).partitions
            lagging, all_near = self._lagging(connection, log.last_seq, now)
        self._idle = log if all_near else None
        moved, is_first = False, True
        while lagging and (is_first or time.monotonic() < ends):
            is_first = False
            after = min(place.position for place in lagging)
            until = min(after + WINDOW_SEQS, log.last_seq)
            looked = [place for place in lagging if place.position < until]
            with self._database.reading() as connection:
                ahead = _seqs_by_target(connection, partitions, after, until)
            for place in looked:
                reached: dict[int, list[int]] = defaultdict(list)
                for target_id in lagging.pop(place):
                    seqs = ahead.get((target_id, place.partition), ())
                    seq = _reached(seqs, place.position, until)
                    reached[seq].append(target_id)
                    if seq < until:
                        self._waiting.add((target_id, _Place(place.partition, seq)))
                for seq, target_ids in reached.items():
                    for some in chunks(target_ids, IDLE_CURSORS.batch_cursors) if seq > place.position else ():
                        if moved and time.monotonic() > ends:
                            return True
                        with self._database.committing() as connection:
                            moved |= cursors.pass_over(
                                connection, some, place.partition, (place.position, seq), epoch=log.epoch, now=now
                            )
                    if seq == until < log.last_seq:
                        lagging.setdefault(_Place(place.partition, seq), []).extend(target_ids)
        return moved

    def _lagging(self, connection: sa.Connection, head: int, now: int) -> tuple[dict[_Place, list[int]], bool]:
        """Return the targets whose free cursors lag, by the places of the cursors, and whether none lags, also leased.

        A leased one may be released where it stands, with more than a window of the log before it.
        """
        c = tables.cursors.c
        free = sa.and_(c.replay_id == WHOLE_LOG, c.leased_until < now)
        counts = sa.select(sa.func.count(sa.case((free, 1))), sa.func.min(c.position))
        behind_log = counts.where(c.replay_id == WHOLE_LOG, c.position < head - IDLE_CURSORS.lag_seqs)
        count, first = connection.execute(behind_log).one()
        behind = IDLE_CURSORS.lag_seqs if count <= IDLE_CURSORS.many_cursors else IDLE_CURSORS.many_lag_seqs
        lagging: dict[_Place, list[int]] = {}
        if count:
            query = sa.select(c.partition, c.position, c.target_id).where(free, c.position < head - behind)
            for partition, position, target_id in connection.execute(query):
                place = _Place(partition, position)
                if (target_id, place) not in self._waiting:
                    lagging.setdefault(place, []).append(target_id)
        return lagging, first is None or first >= head - behind


def _seqs_by_target(
    connection: sa.Connection, partitions: int, after: int, until: int
) -> Mapping[tuple[int, int], Sequence[int]]:
    """Return the seqs of a window of the log, sorted, by target and partition."""
    e = tables.events.c
    query = (
        sa.select(e.partition, e.seq, e.targets)
        .where(e.partition.in_(range(partitions)), e.seq > after, e.seq <= until)
        .order_by(e.partition, e.seq)
    )
    seqs: dict[tuple[int, int], list[int]] = defaultdict(list)
    for partition, seq, targets in connection.execute(query):
        for target_id in filter(None, targets.split(",")):
            seqs[int(target_id), partition].append(seq)
    return seqs


def _reached(seqs: Sequence[int], position: int, until: int) -> int:
    """Return the last seq before the target's first event after a position, or the end of the window."""
    place = bisect_right(seqs, position)
    return seqs[place] - 1 if place < len(seqs) else until
