"""Limit how many events a second a target gets, by a token bucket that the workers of all machines share.

The bucket is one row: the time up to which its tokens are used. It holds those of one second at most, so a target that
was idle gets as many at once. Workers take tokens before they deliver and give back those that they did not need; a
target without a limit has no row. A worker that gets none releases its lease, and the drain offers nothing of the
target before tokens are there again.
"""

from collections.abc import Callable, Collection
from contextlib import suppress

import sqlalchemy as sa

from app.outbox import tables
from app.outbox.engine.database import Database
from app.outbox.engine.locks import repeated_after_deadlock

_SECOND = 1_000_000  # in the unit of the bucket, microseconds
MAX_WAIT_MS = 2_000  # ms; a longer one is due to a clock that has been set back
_SHARE = 10  # tokens are taken when there are at least a tenth of a second's, so that batches do not get tiny
_TRIES = 3  # to take tokens; each fails only because another worker has just taken or given back some


class RateLimit:
    """One target's bucket. `rate` is events a second; `clock` returns ms since 1970, by the database's clock."""

    def __init__(self, database: Database, target_id: int, rate: int, clock: Callable[[], int]) -> None:
        self._database = database
        self._target_id = target_id
        self._rate = rate
        self._clock = clock

    def take(self, wanted: int) -> int:
        """Take up to `wanted` tokens, and return how many; 0 if there are too few now, or many workers take some."""
        for _ in range(_TRIES):
            with suppress(sa.exc.IntegrityError):  # another worker has just created the row
                if (taken := self._take(wanted)) is not None:
                    return taken
        return 0

    @repeated_after_deadlock
    def give_back(self, events: int) -> None:
        """Give back tokens that were not needed."""
        r, time = tables.rate_limits.c, events * _SECOND // self._rate
        with self._database.committing() as connection:
            connection.execute(
                tables.rate_limits.update()
                .where(r.target_id == self._target_id)
                .values(used_until=r.used_until - time, ready_at=r.ready_at - time // 1000)
            )

    @repeated_after_deadlock
    def _take(self, wanted: int) -> int | None:
        """Take tokens if the bucket stays as it was read; return None if another worker has changed it meanwhile.

        No lock is held between two statements: a process that is stopped here must not hold up the other workers.
        """
        r = tables.rate_limits.c
        mine = r.target_id == self._target_id
        with self._database.reading() as connection:
            row = connection.execute(sa.select(r.used_until, r.ready_at).where(mine)).one_or_none()
        now = self._clock() * 1000
        # Tokens are used up to now at most: a later time is that of a clock that has been set back since.
        known = row is not None and row.used_until <= now + _SECOND
        used = max(row.used_until, now - _SECOND) if row is not None and known else now - _SECOND
        least = min(wanted, max(1, self._rate // _SHARE))
        available = max(0, now - used) * self._rate // _SECOND
        taken = min(wanted, available) if available >= least else 0
        used += self._time(taken)
        ready_at = -(-(used + self._time(max(1, self._rate // _SHARE))) // 1000)
        if row is not None and (row.used_until, row.ready_at) == (used, ready_at):
            return 0
        change = (
            tables.rate_limits.insert().values(target_id=self._target_id)
            if row is None
            else tables.rate_limits.update().where(mine, r.used_until == row.used_until)
        )
        with self._database.committing() as connection:
            changed = connection.execute(change.values(used_until=used, ready_at=ready_at))
        return taken if changed.rowcount else None

    def _time(self, events: int) -> int:
        """Return the time in which so many tokens arise, rounded up."""
        return -(-events * _SECOND // self._rate)


def ready_times(connection: sa.Connection, target_ids: Collection[int], now: int) -> dict[int, int]:
    """Return when those of some targets that have too few tokens at `now` will have enough (ms), by row id."""
    r = tables.rate_limits.c
    query = sa.select(r.target_id, r.ready_at).where(
        r.target_id.in_(target_ids), r.ready_at > now, r.ready_at <= now + MAX_WAIT_MS
    )
    return {row.target_id: row.ready_at for row in connection.execute(query)}


def forget_removed(connection: sa.Connection) -> None:
    """Delete the buckets of targets that do not exist any more."""
    known = sa.select(tables.targets.c.id)
    connection.execute(tables.rate_limits.delete().where(tables.rate_limits.c.target_id.not_in(known)))
