"""Read an object's history: its events in the log, and each event's delivery state at each of its targets."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import sqlalchemy as sa

from app.outbox import tables
from app.outbox.delivery.attempts import Timeline, timelines
from app.outbox.delivery.event_states import RecordedEvent, recorded_events
from app.outbox.engine.database import Database
from app.outbox.log.batch import key_hash
from app.outbox.log.records import Reserve, reserve_nothing, small_record, within_budget
from app.outbox.markers import NEVER

_COLUMNS = [column for column in tables.events.c if column.name != "record"]


class ObjectHistory(NamedTuple):
    """A page of an object's events, oldest first; `next` is the seq before which the previous ones are, or None."""

    events: Sequence[RecordedEvent]
    next: int | None


def object_history(
    database: Database,
    bucket: str,
    key: str,
    *,
    limit: int = 1000,
    after: int = 0,
    records: bool = True,
    reserve: Reserve = reserve_nothing,
) -> ObjectHistory:
    """Return the object's last `limit` events, none if the log has none (any more); with `after`, those before it.

    `after` is the `next` of the previous page. There are fewer if their records exceed the budget of bytes, which has
    one event at least. Without `records` they have none. `reserve` is told of these bytes before they are read.
    """
    e = tables.events.c
    query = (
        sa.select(*_COLUMNS, *([small_record] if records else []))
        .where(e.key_hash == key_hash(bucket, key), e.bucket == bucket, e.key == key, e.seq < (after or NEVER))
        .order_by(e.seq.desc())
        .limit(limit + 1)
    )
    with database.snapshot() as connection:
        rows = connection.execute(query).all()
        kept = rows[:limit]
        events = recorded_events(connection, kept)
        if records:
            read = within_budget(connection, ((row.partition, row.seq, row.record) for row in kept), reserve)
            events = [replace(event, record=record or "") for event, record in zip(events, read, strict=False)]
    return ObjectHistory(events[::-1], events[-1].seq if len(events) < len(rows) else None)


def find_event(database: Database, event_id: str, reserve: Reserve = reserve_nothing) -> RecordedEvent | None:
    """Return the event of this id with the attempts at it; None if the log does not have it (any more).

    `reserve` is as in `object_history`.
    """
    columns = (*_COLUMNS, small_record)
    with database.snapshot() as connection:
        row = connection.execute(sa.select(*columns).where(tables.events.c.id == event_id)).one_or_none()
        if row is None:
            return None
        [event] = recorded_events(connection, [row])
        [record] = within_budget(connection, [(row.partition, row.seq, row.record)], reserve)
        event = replace(event, record=record or "")
        by_target = timelines(connection, row)
    states = []
    for state in event.delivery_states:
        attempts, exchange, at = by_target.get(state.target, Timeline())
        states.append(replace(state, timeline=attempts, exchange=exchange, exchange_at=at))
    return replace(event, delivery_states=states)
