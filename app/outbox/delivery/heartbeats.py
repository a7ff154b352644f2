"""Signs of life: when the drain last looked for work, and when a worker last answered on each target's queue.

A queue is asked by a hint like any other, and the worker that takes it notes the time. While nobody answers, the
queue is asked ever more rarely: what waits in a broker that forgets nothing stays a handful, and is the first thing
that a worker finds when there is one again.
"""

from dataclasses import dataclass

import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox import tables
from app.outbox.engine.database import Database

DRAIN = "drain"
DRAIN_STOPPED = 30_000  # ms without a drain after which it counts as stopped; it notes itself each second
EVERY = 15_000  # ms between two questions to a queue that is served
UNSERVED = 300_000  # ms without an answer after which a queue counts as served by nobody
_RAREST = 3_600_000
_LEAST_APART = 100  # ms between two questions of all: with a thousand targets they come less often
# Before a target's row id, which is never used again; its name might be too long.
_QUEUE, _ASKED, _SILENT = "queue.", "asked.", "silent."


@dataclass(frozen=True, slots=True)
class Queue:
    """A target's queue. Times are ms, 0 for never; `unanswered` is when it was asked what it first did not answer."""

    target: TargetId
    row_id: int
    made: int
    asked: int
    answered: int
    unanswered: int

    def silent(self, now: int) -> int:
        """Milliseconds since a worker answered, or since there is such a queue."""
        return max(0, now - max(self.answered, self.made))

    def due(self, now: int, every: int) -> bool:
        """Whether to ask now; one that does not answer is asked when it has been silent for twice as long."""
        silent_for = self.asked - self.unanswered if self.unanswered > self.answered else 0
        return now - self.asked >= min(_RAREST, max(every, silent_for))


def record(database: Database, name: str, now: int) -> None:
    """Note a sign of life."""
    with database.writing() as connection:
        if connection.execute(
            tables.heartbeats.update().where(tables.heartbeats.c.name == name).values(at=now)
        ).rowcount:
            return
    try:
        with database.writing() as connection:
            connection.execute(tables.heartbeats.insert().values(name=name, at=now))
    except sa.exc.IntegrityError:
        return  # somebody else noted the same just now


def last_drain(connection: sa.Connection) -> int | None:
    """When the drain last looked for work (ms); None for never."""
    found: int | None = connection.execute(
        sa.select(tables.heartbeats.c.at).where(tables.heartbeats.c.name == DRAIN)
    ).scalar_one_or_none()
    return found


def drain_age(drained_at: int | None, now: int) -> int | None:
    """Milliseconds since the drain last looked for work, which `drained` has found; None for never."""
    return None if drained_at is None else max(0, now - drained_at)


def drain_stopped(drained_at: int | None, now: int) -> bool:
    """Whether the drain has stopped, or never ran: then nothing is delivered."""
    age = drain_age(drained_at, now)
    return age is None or age > DRAIN_STOPPED


def queues(connection: sa.Connection) -> list[Queue]:
    """The queues that workers have to serve: those of the enabled targets, paused ones included."""
    t = tables.targets.c
    at = {
        row.name: int(row.at) for row in connection.execute(sa.select(tables.heartbeats.c.name, tables.heartbeats.c.at))
    }
    rows = connection.execute(sa.select(t.id, t.type, t.name, t.created_at).where(t.enabled).order_by(t.type, t.name))
    return [
        Queue(
            TargetId(row.type, row.name),
            row.id,
            row.created_at,
            at.get(f"{_ASKED}{row.id}", 0),
            at.get(f"{_QUEUE}{row.id}", 0),
            at.get(f"{_SILENT}{row.id}", 0),
        )
        for row in rows
    ]


def queues_to_probe(database: Database, now: int) -> list[Queue]:
    """The queues to ask now, which count as asked from now on. Forgets those of targets that are gone."""
    with database.reading() as connection:
        found = queues(connection)
        gone = _gone(connection)
    if gone:
        with database.writing() as connection:
            connection.execute(tables.heartbeats.delete().where(tables.heartbeats.c.name.in_(gone)))
    every = max(EVERY, _LEAST_APART * len(found))
    due = [queue for queue in found if queue.due(now, every)]
    for queue in due:
        if queue.asked > queue.answered >= queue.unanswered:
            record(database, f"{_SILENT}{queue.row_id}", queue.asked)
        record(database, f"{_ASKED}{queue.row_id}", now)
    return due


def answered(database: Database, row_id: int, now: int) -> None:
    """Note that a worker has answered on the queue of the target with this row id."""
    record(database, f"{_QUEUE}{row_id}", now)


def _gone(connection: sa.Connection) -> list[str]:
    kept = {str(row_id) for row_id in connection.execute(sa.select(tables.targets.c.id)).scalars()}
    names = connection.execute(sa.select(tables.heartbeats.c.name)).scalars()
    return [
        name
        for name in names
        for prefix in (_QUEUE, _ASKED, _SILENT)
        if name.startswith(prefix) and name.removeprefix(prefix) not in kept
    ][:500]
