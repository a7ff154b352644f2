"""Read an object's history: its events in the log, and each event's delivery state at each of its targets."""

from dataclasses import replace

import sqlalchemy as sa

from app.outbox import tables
from app.outbox.delivery.attempts import timelines
from app.outbox.delivery.event_states import RecordedEvent, recorded_events
from app.outbox.engine.database import Database
from app.outbox.log.batch import key_hash


def object_history(database: Database, bucket: str, key: str, *, limit: int = 1000) -> list[RecordedEvent]:
    """Return the object's last `limit` events, oldest first; empty if the log has none (any more)."""
    e = tables.events.c
    query = (
        sa.select(tables.events)
        .where(e.key_hash == key_hash(bucket, key), e.bucket == bucket, e.key == key)
        .order_by(e.seq.desc())
        .limit(limit)
    )
    with database.snapshot() as connection:
        return recorded_events(connection, list(reversed(connection.execute(query).all())))


def find_event(database: Database, event_id: str) -> RecordedEvent | None:
    """Return the event of this id with the attempts at it; None if the log does not have it (any more)."""
    with database.snapshot() as connection:
        row = connection.execute(sa.select(tables.events).where(tables.events.c.id == event_id)).one_or_none()
        if row is None:
            return None
        [event] = recorded_events(connection, [row])
        found = timelines(connection, row)
    states = [replace(state, timeline=found.get(state.target, ())) for state in event.delivery_states]
    return replace(event, delivery_states=states)
