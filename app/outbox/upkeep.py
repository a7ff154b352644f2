"""Record what came of what beat and the drain do by time, and find what failed, is overdue, or was missed.

A task beside deliveries records its success once in a while, and each failure at once. A row is there from the first
process on that may run the task: what never succeeds becomes overdue, too.

Beat sends what is due by time. What it does not send while it does nothing is not made up for, except a scheduled run
that was due within the last hour.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson
import sqlalchemy as sa

from app.config.fields.times import last_moment
from app.outbox import tables
from app.outbox.engine.database import Database
from app.outbox.engine.many_rows import chunks
from app.outbox.policies import HEARTBEATS, RECONCILIATIONS, UPKEEP
from app.outbox.processes import BEAT, Process
from app.outbox.reconcile.schedule import scheduled_pairs
from app.outbox.series import FINE


class Task(NamedTuple):
    """What runs by time: what it does, and how often at least (s)."""

    about: str
    interval_seconds: int


DRAIN = "drain"
NOTICES = "notices"
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


_BEGAN, _ENDED = "beat.stopped", "beat.back"  # names of heartbeats


def record_heartbeat(database: Database, name: str, now: int) -> None:
    """Record a heartbeat."""
    with database.writing() as connection:
        if connection.execute(
            tables.heartbeats.update().where(tables.heartbeats.c.name == name).values(at=now)
        ).rowcount:
            return
    try:
        with database.writing() as connection:
            connection.execute(tables.heartbeats.insert().values(name=name, at=now))
    except sa.exc.IntegrityError:
        return  # another process has just recorded the same


def forget_probes(database: Database) -> None:
    """Delete the heartbeats of queues, which 0.2 records."""
    name = tables.heartbeats.c.name
    former = sa.or_(*(name.startswith(prefix) for prefix in ("queue.", "asked.", "silent.")))
    with database.reading() as connection:
        names = connection.execute(sa.select(name).where(former)).scalars().all()
    for some in chunks(names):
        with database.committing() as connection:
            connection.execute(tables.heartbeats.delete().where(name.in_(some)))


def last_drain(connection: sa.Connection) -> int | None:
    """Return when the drain last ran (ms); None for never."""
    query = sa.select(tables.heartbeats.c.at).where(tables.heartbeats.c.name == DRAIN)
    drained_at: int | None = connection.execute(query).scalar_one_or_none()
    return drained_at


def drain_age(drained_at: int | None, now: int) -> int | None:
    """Return the milliseconds since the drain last ran, at the time that `last_drain` returned; None for never."""
    return None if drained_at is None else max(0, now - drained_at)


def drain_stopped(drained_at: int | None, now: int) -> bool:
    """Return whether the drain has stopped or never ran; then nothing is delivered."""
    age = drain_age(drained_at, now)
    return age is None or age > HEARTBEATS.drain_silence_ms


class Pause(NamedTuple):
    """From when until when (ms) no beat did anything."""

    began: int
    ended: int


class Missed(NamedTuple):
    """What beat has not sent: samples, and scheduled runs that were due; of these, `lost` are not made up for."""

    samples: int
    runs: int
    lost: int


def beat_at(processes: Iterable[Process]) -> int | None:
    """Return when a beat last did its work (ms); None for never."""
    return max((one.served_at for one in processes if BEAT in one.serves), default=0) or None


def read_beat_at(connection: sa.Connection) -> int | None:
    """Return the same as `beat_at`, of all processes."""
    w = tables.workers.c
    query = sa.select(sa.func.max(w.served_at)).where(w.serves == orjson.dumps([BEAT]).decode())
    at: int | None = connection.execute(query).scalar_one()
    return at or None


def record_pause(database: Database, pause: Pause) -> None:
    """Record the last pause. Raises `DatabaseUnavailable`."""
    record_heartbeat(database, _BEGAN, pause.began)
    record_heartbeat(database, _ENDED, pause.ended)


def last_pause(connection: sa.Connection) -> Pause | None:
    """Return the last pause."""
    h = tables.heartbeats.c
    rows = connection.execute(sa.select(h.name, h.at).where(h.name.in_((_BEGAN, _ENDED))))
    times = {row.name: int(row.at) for row in rows}
    return Pause(times[_BEGAN], times[_ENDED]) if len(times) == 2 else None


def read_missed(connection: sa.Connection, pause: Pause, tables_schedule: str) -> Missed:
    """Return what was missed in a pause; the tables' schedule is a setting."""
    runs = [expression for _, _, _, expression in scheduled_pairs(connection)]
    return missed(pause, runs, [tables_schedule] if tables_schedule else [])


def missed(pause: Pause, schedules: Iterable[str], without_delay: Iterable[str]) -> Missed:
    """Return what was missed in a pause; what is scheduled `without_delay` is never made up for."""
    due = [at for each in schedules if (at := last_moment(each, pause.ended)) > pause.began]
    lost = sum(pause.ended - at > RECONCILIATIONS.max_delay_ms for at in due)
    of_tables = sum(last_moment(each, pause.ended) > pause.began for each in without_delay)
    samples = (pause.ended - pause.began) // (FINE.step * 1000)
    return Missed(samples, len(due) + of_tables, lost + of_tables)
