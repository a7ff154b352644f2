"""Build queries for a target's events in the log, and convert their rows."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import sqlalchemy as sa

from app.events.effects import ContentChange, content_change
from app.events.model import Event
from app.events.version_history import Entry
from app.outbox import tables
from app.outbox.delivery.leases import ReplayPartition
from app.outbox.delivery.log_ahead import goes_to
from app.outbox.delivery.parked import ObjectHash
from app.outbox.versions.rows import ObjectKey

LogPosition = tuple[int, int]  # partition and seq of an event in the log
NEWER_LOOKED_AT = 16  # newer events of an object, for any target, that are checked for each event
_COLUMNS = (
    tables.events.c.id,
    tables.events.c.name,
    tables.events.c.bucket,
    tables.events.c.key,
    tables.events.c.version,
    tables.events.c.sequencer,
    tables.events.c.time,
    tables.events.c.record,
    tables.events.c.partition,
    tables.events.c.seq,
    tables.events.c.key_hash,
    tables.events.c.received_at,
    tables.events.c.trace,
)


class LoggedEvent(NamedTuple):
    """An event of the log, as read for one target. (A tuple, because every delivery of every event creates one.)"""

    event: Event
    partition: int
    seq: int
    key_hash: int
    received_at: int
    newest: str | None = ""  # for mirrors: greatest comparable sequencer of its object; None: too many to check

    @property
    def object(self) -> ObjectHash:
        """The event's object: events of one object are delivered one after the other."""
        return self.partition, self.key_hash


def neither_parked_nor_dead(target_id: int) -> list[sa.ColumnElement[bool]]:
    """Return the conditions that events are neither parked nor dead letters of a target."""
    e = tables.events.c
    return [
        ~sa.exists()
        .where(table.c.target_id == target_id, table.c.partition == e.partition, table.c.seq == e.seq)
        .correlate(tables.events)
        for table in (tables.parked, tables.dead_letters)
    ]


def selected(replay: ReplayPartition) -> list[sa.ColumnElement[bool]]:
    """Return a replay's own conditions on the target's events; its cursor and its end are not among them."""
    e = tables.events.c
    conditions: list[sa.ColumnElement[bool]] = [e.received_at >= replay.since, e.received_at < replay.before]
    if replay.bucket:
        conditions.append(e.bucket == replay.bucket)
    if replay.prefix:
        conditions.append(sa.func.substr(e.key, 1, len(replay.prefix)) == replay.prefix)
    if replay.names:
        conditions.append(e.name.in_(replay.names))
    return conditions


def select_logged(target_id: int, *, newest: bool) -> sa.Select[Any]:
    """Build the query for events of the log with the columns that `logged_event` reads."""
    if not newest:
        return sa.select(*_COLUMNS)
    e, other = tables.events.c, tables.events.alias()
    ordered = newest_first(sa.select(other.c.sequencer), other).where(other.c.key_hash == e.key_hash)
    ordered = ordered.limit(1).correlate(tables.events)
    latest = ordered.where(other.c.key == e.key, other.c.bucket == e.bucket)
    latest = latest.where(other.c.targets.like(f"%,{target_id},%"))
    # Most newer events of a hot key may belong to other targets: do not scan them for each event.
    hot = sa.func.coalesce(ordered.offset(NEWER_LOOKED_AT - 1).scalar_subquery(), "") >= e.sequencer
    # Events with a version are judged by the known versions of their key; those without a sequencer are not judged.
    judged = sa.and_(e.sequencer != "", e.version == "")
    known = sa.case((~judged, ""), (hot, sa.null()), else_=latest.scalar_subquery())
    return sa.select(*_COLUMNS, known.label("newest"))


def newest_first(query: sa.Select[Any], events: sa.FromClause) -> sa.Select[Any]:
    """Order an object's events by sequencer, descending, by an index scan that a limit can end.

    Without the index hint, MySQL sorts all events of the object, or reads the whole log, for each event.
    """
    for dialect in ("mysql", "mariadb"):
        query = query.with_hint(events, "FORCE INDEX (ix_events_key_hash_sequencer)", dialect)
    return query.order_by(events.c.key_hash.desc(), events.c.sequencer.desc())


def select_ahead(target_id: int, *, newest: bool) -> sa.Select[Any]:
    """Build the query for a target's first `share` events in `partition`, after `position` and up to `until`.

    These four are bind parameters.
    """
    e = tables.events.c
    return (
        select_logged(target_id, newest=newest)
        .where(e.partition == sa.bindparam("partition"), e.seq > sa.bindparam("position"))
        .where(e.seq <= sa.bindparam("until"), goes_to(target_id))
        .order_by(e.partition, e.seq)
        .limit(sa.bindparam("share", type_=sa.Integer))
    )


def logged_event(row: Any, *, newest: bool) -> LoggedEvent:
    """Convert a row of `select_logged`, which was built with the same `newest`."""
    event = Event(*row[:8])
    if row[12]:  # rare, so other events should not pay for it
        event = event._replace(trace=row[12])
    return LoggedEvent(event, row[8], row[9], row[10], row[11], row[13] if newest else "")


def object_key(logged: LoggedEvent) -> ObjectKey:
    """Return the key of an event's object."""
    return ObjectKey(logged.event.bucket, logged.event.key, logged.partition, logged.key_hash)


def histories(events: Iterable[LoggedEvent]) -> dict[ObjectKey, list[Entry]]:
    """Return the events that change a bucket's content, by key."""
    by_object: dict[ObjectKey, list[Entry]] = {}
    for logged in events:
        event = logged.event
        if content_change(event.name) is not ContentChange.NOTHING:
            entry = Entry(logged.seq, event.name, event.version, event.sequencer)
            by_object.setdefault(object_key(logged), []).append(entry)
    return by_object
