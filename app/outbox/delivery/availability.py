"""Keep whether a target is available (its circuit breaker), was opened when it was set, fails, or has used up its rate.

A target that was created or changed is due to be opened, before its first event: a worker that finds nothing else due
opens it, and records the result. One that could not be opened is tried again, less and less often, so that its table or
topic exists soon after its remote is available. The circuit breaker knows nothing of it: only deliveries open and close
it.

Each change is one statement that commits by itself where the database can: a worker that is stopped between an UPDATE
and its COMMIT would hold the target's row, for which intake would wait.

A target is *failing* if every attempt since its last success has failed. A settlement with failed attempts and no
confirmed event (`settlement_store`) adds to its cursors how many failed in a row, with the mark that the target
has at that moment: the times of its last confirmations and its revision, added up. Each success, new settings and a
resume make it another one, so what was counted before is void, without writing it; marks are compared with each other,
and no time with a clock. Refusals as unavailable are no attempts (`StoredTarget.state` is then `unavailable`), and an
event that needs no sending is no success.

A rate limit is a token bucket that the workers of all machines share. It is one row: the time up to which its tokens
are used. It holds those of one second at most, so a target that was idle gets as many at once. Workers take tokens
before they deliver and give back those that they did not need; a target without a limit has no row. A worker that gets
none releases its lease, and the drain offers nothing of the target before tokens are there again.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox import tables
from app.outbox.column_values import NEVER, WHOLE_LOG, clean_reason
from app.outbox.declared import OPENED, OPENING_FAILED, Failing, StoredTarget
from app.outbox.engine.database import Database
from app.outbox.engine.many_rows import repeated_after_deadlock
from app.outbox.policies import FAILING, OPENINGS


@repeated_after_deadlock
def open_breaker(
    database: Database,
    target_id: int,
    reason: str,
    resume_at: int,
    *,
    probing: bool,
    pause: bool = False,
    revision: int | None = None,
) -> bool:
    """Open the circuit breaker until `resume_at` (ms), unless it is paused; with `pause`, pause the target.

    With a `revision`, only if the target still has it: a failure of earlier settings, or of one that was resumed since,
    must not delay the next attempt.

    Returns whether this call opened the breaker. Partitions that fail together count as one failure: only the first
    one opens the breaker, and only a failed probe (`probing`) keeps it open.
    """
    t = tables.targets.c
    with database.committing() as connection:
        changed = connection.execute(
            tables.targets.update()
            .where(t.id == target_id, sa.not_(t.paused), *([] if probing else [t.breaker == "closed"]))
            .where(*([] if revision is None else [t.revision == revision]))
            .values(
                breaker="open",
                failures=t.failures + 1,
                resume_at=resume_at,
                reason=clean_reason(reason),
                **({"paused": True} if pause else {}),
            )
        )
    return bool(changed.rowcount) and not probing


def count_failures(database: Database, target_id: int) -> int:
    """Return the number of consecutive times that the target was unavailable; 0 if it was removed."""
    with database.reading() as connection:
        query = sa.select(tables.targets.c.failures).where(tables.targets.c.id == target_id)
        return int(connection.execute(query).scalar_one_or_none() or 0)


@repeated_after_deadlock
def close_breaker(database: Database, target_id: int) -> None:
    """Close the circuit breaker after the target has accepted an event."""
    t = tables.targets.c
    with database.committing() as connection:
        connection.execute(
            tables.targets.update()
            .where(t.id == target_id, t.breaker != "closed")
            .values(breaker="closed", failures=0, resume_at=0, reason="")
        )


def targets_to_open(connection: sa.Connection, now: int, after: int) -> list[tuple[int, TargetId]]:
    """Return some of the targets to open now, with their row ids: first those above `after`, then from the lowest on.

    A paused, disabled or broken target is not contacted. The caller goes on after the last one, so that targets which
    no worker serves hide no others.
    """
    t = tables.targets.c
    query = (
        sa.select(t.id, t.type, t.name)
        .where(t.enabled, sa.not_(t.paused), t.problem == "", t.opening_due_at <= now)
        .order_by(sa.case((t.id > after, 0), else_=1), t.id)
        .limit(OPENINGS.batch_targets)
    )
    return [(row.id, TargetId(row.type, row.name)) for row in connection.execute(query)]


@repeated_after_deadlock
def begin_opening(database: Database, stored: StoredTarget, now: int) -> bool:
    """Return whether the caller has to open a target now; then nobody else has to, until the next try is due."""
    t = tables.targets.c
    pause = min(OPENINGS.max_pause_ms, OPENINGS.first_pause_ms << min(stored.opening_tries, 10))
    mine = (t.id == stored.row_id, t.revision == stored.revision, t.opening_due_at == stored.opening_due_at)
    with database.committing() as connection:
        begun = connection.execute(
            tables.targets.update()
            .where(*mine, t.opening_due_at <= now, t.opening != OPENED)
            .values(opening_due_at=now + pause, opening_tries=t.opening_tries + 1)
        )
    return bool(begun.rowcount)


@repeated_after_deadlock
def record_opening(database: Database, row_id: int, revision: int, now: int, problem: str = "") -> bool:
    """Record that the target was opened, or why it could not be; return whether that was recorded.

    Not recorded are a result for settings that were replaced meanwhile, and a failure after a success, which another
    worker had at the same time.
    """
    t = tables.targets.c
    values: dict[str, Any] = {"opening": OPENED, "opening_reason": "", "opening_at": now, "opening_due_at": NEVER}
    if problem:
        values = {"opening": OPENING_FAILED, "opening_reason": clean_reason(problem), "opening_at": now}
    with database.committing() as connection:
        changed = connection.execute(
            tables.targets.update().where(t.id == row_id, t.revision == revision, t.opening != OPENED).values(**values)
        )
    return bool(changed.rowcount)


_C, _T, _A = tables.cursors.c, tables.targets.c, tables.attempts.c
_FAILED_RING = 1  # of the record of attempts


def read_mark(connection: sa.Connection, target_id: int) -> int:
    """Return the present mark of a target; 0 if it was removed."""
    return int(connection.execute(sa.select(_mark()).where(_T.id == target_id)).scalar() or 0)


def read_failing(connection: sa.Connection, target_id: int | None = None) -> dict[int, Failing]:
    """Return the failing targets, or the one if it is failing, by row id.

    It reads the cursors with failures, all of the targets that have some, and the last reasons of some targets.
    """
    rows = sa.select(
        _C.target_id,
        _C.failed_mark,
        sa.func.sum(_C.failed_in_row).label("attempts"),
        sa.func.min(_C.failed_since).label("since"),
    ).where(_C.failed_in_row > 0, *(() if target_id is None else (_C.target_id == target_id,)))
    grouped = rows.group_by(_C.target_id, _C.failed_mark).having(sa.func.sum(_C.failed_in_row) >= FAILING.min_attempts)
    failed = grouped.subquery()
    query = (
        sa.select(_T.id, failed.c.attempts, failed.c.since)
        .join_from(failed, tables.targets, _T.id == failed.c.target_id)
        .where(failed.c.failed_mark == _mark())
    )
    by_target = {row.id: Failing(int(row.attempts), row.since) for row in connection.execute(query)}
    reasons = {row_id: _last_reason(connection, row_id) for row_id in list(by_target)[: FAILING.max_reasons]}
    return {row_id: replace(one, reason=reasons.get(row_id, "")) for row_id, one in by_target.items()}


def with_failing(connection: sa.Connection, targets: Sequence[StoredTarget]) -> list[StoredTarget]:
    """Return the targets, those that are failing with what is known of that."""
    failing = read_failing(connection, targets[0].row_id if len(targets) == 1 else None)
    return [replace(stored, failing=failing.get(stored.row_id)) for stored in targets]


def _last_reason(connection: sa.Connection, target_id: int) -> str:
    """Return why the last recorded attempt has failed, "" if none is yet: workers record some seconds later."""
    of_target = (_A.target_id == target_id, _A.ring == _FAILED_RING)
    newest = sa.select(_A.reason).where(*of_target).order_by(_A.id.desc()).limit(1)
    return connection.execute(newest).scalar() or ""


def _mark() -> sa.ColumnElement[int]:
    """Build what the mark of the target of an enclosing query is made of.

    Not of the delivered events: a mirror counts those among them that change nothing, which are not sent.
    """
    all_of_it = tables.cursors.alias("all_of_it")
    confirmed = sa.select(sa.func.sum(all_of_it.c.delivered_at)).where(
        all_of_it.c.target_id == _T.id, all_of_it.c.replay_id == WHOLE_LOG
    )
    return sa.func.coalesce(confirmed.scalar_subquery(), 0) + _T.revision


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
