"""Record when the drain last ran and when beat did nothing for a while, and find out what was missed meanwhile.

Beat sends what is due by time. What it does not send is not made up for, except a scheduled run that was due within the
last hour.
"""

from collections.abc import Iterable
from typing import NamedTuple

import orjson
import sqlalchemy as sa

from app.config.fields.times import last_moment
from app.outbox import tables
from app.outbox.engine.database import Database
from app.outbox.engine.many_rows import chunks
from app.outbox.policies import HEARTBEATS, RECONCILIATIONS
from app.outbox.processes import BEAT, Process
from app.outbox.reconcile.schedule import scheduled_pairs
from app.outbox.series import FINE

DRAIN = "drain"
_BEGAN, _ENDED = "beat.stopped", "beat.back"  # names of heartbeats


def record(database: Database, name: str, now: int) -> None:
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
    record(database, _BEGAN, pause.began)
    record(database, _ENDED, pause.ended)


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
