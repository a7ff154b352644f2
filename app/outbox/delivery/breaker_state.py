"""Open and close a target's circuit breaker, as workers report its availability.

Each change is one statement that commits by itself where the database can: a worker that is stopped between an UPDATE
and its COMMIT would hold the target's row, for which intake would wait.
"""

import sqlalchemy as sa

from app.outbox import tables
from app.outbox.column_values import clean_reason
from app.outbox.engine.database import Database
from app.outbox.engine.locks import repeated_after_deadlock


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
