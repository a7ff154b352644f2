"""Record when the drain last ran, and find out whether it has stopped."""

import sqlalchemy as sa

from app.outbox import tables
from app.outbox.engine.database import Database
from app.outbox.engine.many_rows import chunks
from app.outbox.policies import HEARTBEATS

DRAIN = "drain"


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
