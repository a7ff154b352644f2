"""Find the newest sequencer of objects with many newer events, for which the query of the log leaves it open."""

import sqlalchemy as sa

from app.outbox import tables
from app.outbox.delivery.log_ahead import is_for
from app.outbox.delivery.logged_events import MAX_NEWER_EVENTS, LoggedEvent, newest_first, object_key
from app.outbox.versions.object_versions import ObjectVersions
from app.outbox.versions.rows import ObjectKey


def fill_in_newest(
    connection: sa.Connection, target_id: int, versions: ObjectVersions, events: list[LoggedEvent]
) -> list[LoggedEvent]:
    """Return a target's events with `newest` filled in where the query checked too few newer events to determine it."""
    hot = dict.fromkeys(object_key(logged) for logged in events if logged.newest is None)
    if not hot:
        return events
    newest = {key: some for key in hot if (some := _newest_of_some(connection, target_id, key)) is not None}
    newest |= versions.latest([key for key in hot if key not in newest])
    return [
        logged if logged.newest is not None else logged._replace(newest=newest[object_key(logged)]) for logged in events
    ]


def _newest_of_some(connection: sa.Connection, target_id: int, key: ObjectKey) -> str | None:
    """Return the greatest sequencer of the target's events of a key; None if not among the greatest of all."""
    e = tables.events.c
    columns = sa.select(e.bucket, e.key, e.sequencer, is_for(target_id).label("mine"))
    query = newest_first(columns, tables.events).where(e.key_hash == key.key_hash).limit(MAX_NEWER_EVENTS)
    rows = connection.execute(query).all()
    return next((row.sequencer for row in rows if row.mine and (row.bucket, row.key) == key[:2]), None)
