"""Record what came of what beat and the drain start by time beside deliveries, and find what failed or is overdue.

A task records its success once in a while, and each failure at once. A row is there from the first process on that may
run the task: what never succeeds becomes overdue, too.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import sqlalchemy as sa

from app.outbox import tables
from app.outbox.engine.database import Database
from app.outbox.policies import UPKEEP


class Task(NamedTuple):
    """What runs by time: what it does, and how often at least (s)."""

    about: str
    interval_seconds: int


DRAIN, NOTICES = "drain", "notices"
TASKS: Mapping[str, Task] = MappingProxyType(
    {
        DRAIN: Task("waking workers for due work", 10),
        "schedule": Task("registering the reconciliations that are due", 5),
        "purge": Task("removing events older than BUCKETWIRE_RETENTION", 10),
        # Each purge is short: one alone need not remove everything.
        "retention": Task("removing all events older than BUCKETWIRE_RETENTION, so that the log does not grow", 3600),
        "samples": Task("taking samples for the curves", 10),
        NOTICES: Task("recording events about the service", 10),
        "heads": Task("looking for parked objects that nothing would try again", 60),
        "times": Task("looking for times that are too far in the future", 60),
        "audit": Task("removing entries of the audit log older than BUCKETWIRE_AUDIT_RETENTION", 600),
        "attempts": Task("removing the attempts at targets that were removed", 600),
        "rates": Task("removing the rate limits of targets that were removed", 600),
        "workers": Task("removing processes that ended long ago", 600),
        "refusals": Task("removing what was refused more than a day ago", 600),
        "versions": Task("removing what mirrors no longer need to know of versions", 600),
    }
)

_U = tables.upkeep.c


@dataclass(frozen=True, slots=True)
class TaskState:
    """What came of a task last. Times are ms, 0 for never or not; `due_at` is since when it is overdue."""

    name: str
    succeeded_at: int
    failed_at: int = 0
    problem: str = ""
    due_at: int = 0

    @property
    def has_failed(self) -> bool:
        """Whether it failed when it ran last."""
        return self.failed_at > self.succeeded_at

    @property
    def task(self) -> Task:
        """What it does."""
        return TASKS[self.name]


def begin_all(database: Database, now: int) -> None:
    """Have the tasks count as overdue if they do not succeed from now on; those that are known stay as they are."""
    with database.reading() as connection:
        known = set(connection.execute(sa.select(_U.name)).scalars())
    for name in sorted(TASKS.keys() - known):
        with suppress(sa.exc.IntegrityError), database.writing() as connection:  # another process has just done so
            connection.execute(tables.upkeep.insert().values(name=name, succeeded_at=now))


def _record(database: Database, name: str, **values: int | str) -> None:
    with database.writing() as connection:
        connection.execute(tables.upkeep.update().where(_U.name == name).values(values))


def record_success(database: Database, name: str, now: int) -> None:
    """Record that a task has succeeded."""
    _record(database, name, succeeded_at=now)


def record_failure(database: Database, name: str, now: int, problem: str) -> None:
    """Record that a task has failed, and why: everybody who may read the state of the service reads that."""
    _record(database, name, failed_at=now, problem=problem)


def read_tasks(connection: sa.Connection, now: int, *, service_events: bool) -> list[TaskState]:
    """Return the tasks that have begun, in the order of `TASKS`, at `now` (ms), unless they are switched off."""
    rows = {row.name: row for row in connection.execute(sa.select(tables.upkeep))}
    return list(_states(rows, now, service_events=service_events))


def _states(rows: Mapping[str, Any], now: int, *, service_events: bool) -> Iterator[TaskState]:
    for name, task in TASKS.items():
        row = rows.get(name)
        if row is not None and (name != NOTICES or service_events):
            due_at = max(row.succeeded_at, row.failed_at) + task.interval_seconds * 1000
            is_overdue = now - due_at > UPKEEP.grace_ms
            yield TaskState(name, row.succeeded_at, row.failed_at, row.problem, due_at if is_overdue else 0)
