"""Keep whether a target is available: open and close its circuit breaker, and have it opened when it is set.

A target that was created or changed is due to be opened, before its first event: the drain offers it to the target's
queue, and a worker opens it and records the result. One that could not be opened is offered again, less and less often,
so that its table or topic exists soon after its remote is available. The circuit breaker knows nothing of it: only
deliveries open and close it. Opening is idempotent, so that two workers may open a target at the same time.

Each change is one statement that commits by itself where the database can: a worker that is stopped between an UPDATE
and its COMMIT would hold the target's row, for which intake would wait.
"""

import time
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox import tables
from app.outbox.column_values import NEVER, clean_reason
from app.outbox.engine.database import Database
from app.outbox.engine.locks import repeated_after_deadlock
from app.outbox.policies import OPENINGS
from app.outbox.targets import OPENED, OPENING_FAILED


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
    """Open the circuit breaker until `resume_at` (ms); with `pause`, also pause the target.

    With a `revision`, only if the target still has it: a failure of earlier settings, or of one that was resumed since,
    must not delay the next attempt.

    Returns whether this call opened the breaker. Partitions that fail together count as one failure: only the first
    one opens the breaker, and only a failed probe (`probing`) keeps it open.
    """
    t = tables.targets.c
    with database.committing() as connection:
        changed = connection.execute(
            tables.targets.update()
            .where(t.id == target_id, *([] if probing else [t.breaker == "closed"]))
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


@dataclass(frozen=True, slots=True)
class Opening:
    """An offer to open a target with the settings that have this revision.

    `next_at` (ms) is when the target is offered again; it distinguishes the newest offer from late ones.
    """

    target: TargetId
    revision: int
    next_at: int


def offer_openings(database: Database, now: int) -> list[Opening]:
    """Return some of the targets to open now, each marked as offered. Safe to run concurrently: one caller gets each.

    A paused, disabled or broken target is not contacted; it is offered when it is no longer. A call is short; the next
    one returns further targets.
    """
    ends = time.monotonic() + OPENINGS.max_seconds
    t = tables.targets.c
    query = (
        sa.select(t.id, t.type, t.name, t.revision, t.opening_tries, t.opening_due_at)
        .where(t.enabled, sa.not_(t.paused), t.problem == "", t.opening_due_at <= now)
        .order_by(t.opening_due_at, t.id)
        .limit(OPENINGS.batch_offers)
    )
    with database.reading() as connection:
        due = connection.execute(query).all()
    offered: list[Opening] = []
    for row in due:
        next_at = now + min(OPENINGS.max_pause_ms, OPENINGS.first_pause_ms << min(row.opening_tries, 10))
        if _mark(database, row, next_at):
            offered.append(Opening(TargetId(row.type, row.name), row.revision, next_at))
        if time.monotonic() > ends:
            break
    return offered


@repeated_after_deadlock
def postpone_opening(database: Database, row_id: int, opening: Opening, now: int) -> None:
    """Have the target offered again soon, because no process was free to open it; the offer counts as no try."""
    t = tables.targets.c
    with database.committing() as connection:
        connection.execute(
            tables.targets.update()
            .where(t.id == row_id, t.revision == opening.revision, t.opening_due_at == opening.next_at)
            .where(t.opening != OPENED, t.opening_tries > 0)
            .values(opening_due_at=now + OPENINGS.postponed_ms, opening_tries=t.opening_tries - 1)
        )


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


def _mark(database: Database, row: Any, next_at: int) -> bool:
    t = tables.targets.c
    with database.committing() as connection:
        changed = connection.execute(
            tables.targets.update()
            .where(t.id == row.id, t.revision == row.revision, t.opening_due_at == row.opening_due_at)
            .where(t.opening != OPENED)
            .values(opening_due_at=next_at, opening_tries=row.opening_tries + 1)
        )
    return bool(changed.rowcount)
