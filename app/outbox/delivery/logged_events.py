"""Build queries for a target's events in the log, and convert their rows."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import sqlalchemy as sa

from app.events.frontends.registry import hides_older
from app.events.model import Event
from app.events.names import ContentChange, content_change
from app.events.order import Entry
from app.outbox import tables
from app.outbox.delivery.due_work import ObjectHash
from app.outbox.delivery.leases import ReplayPartition
from app.outbox.engine.many_rows import search_each
from app.outbox.log.arrivals import LogWindow
from app.outbox.log.reading import is_for, is_named, small_record, within_budget
from app.outbox.object_versions import ObjectKey, ObjectVersions

LogPosition = tuple[int, int]  # partition and seq of an event in the log
MAX_NEWER_EVENTS = 16  # newer events of an object, for any target, that are checked for each event
_COLUMNS = (
    tables.events.c.id,
    tables.events.c.name,
    tables.events.c.bucket,
    tables.events.c.key,
    tables.events.c.version,
    tables.events.c.sequencer,
    tables.events.c.time,
    small_record,
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
        conditions.append(is_named(e.name, replay.names))
    return conditions


def select_logged(target_id: int, *, newest: bool) -> sa.Select[Any]:
    """Build the query for events of the log with the columns that `logged_event` reads; it leaves out long records."""
    if not newest:
        return sa.select(*_COLUMNS)
    e, other = tables.events.c, tables.events.alias()
    ordered = newest_first(sa.select(other.c.sequencer), other).where(other.c.key_hash == e.key_hash)
    ordered = ordered.limit(1).correlate(tables.events)
    latest = ordered.where(other.c.key == e.key, other.c.bucket == e.bucket)
    latest = latest.where(other.c.targets.like(f"%,{target_id},%"))
    # Most newer events of a hot key may belong to other targets: do not scan them for each event.
    hot = sa.func.coalesce(ordered.offset(MAX_NEWER_EVENTS - 1).scalar_subquery(), "") >= e.sequencer
    # Events with a version are compared by the known versions of their key; those without a sequencer are not.
    is_comparable = sa.and_(e.sequencer != "", e.version == "")
    known = sa.case((~is_comparable, ""), (hot, sa.null()), else_=latest.scalar_subquery())
    return sa.select(*_COLUMNS, known.label("newest"))


def newest_first(query: sa.Select[Any], events: sa.FromClause) -> sa.Select[Any]:
    """Order an object's events by sequencer, descending, by an index scan that a limit can end.

    Without the index hint, MySQL sorts all events of the object, or reads the whole log, for each event.
    """
    for dialect in ("mysql", "mariadb"):
        query = query.with_hint(events, "FORCE INDEX (ix_events_key_hash_sequencer)", dialect)
    return query.order_by(events.c.key_hash.desc(), events.c.sequencer.desc())


def select_ahead(target_id: int, *, newest: bool) -> sa.Select[Any]:
    """Build the query for a target's first events in one partition.

    `share`, `partition`, `position` (after which) and `until` (up to which) are bind parameters.
    """
    places = ("partition", "position", "until", "share")
    return _select_ahead(target_id, *(sa.bindparam(name, type_=sa.BigInteger) for name in places), newest=newest)


def events_after(
    connection: sa.Connection, windows: Sequence[LogWindow], share: int, *, newest: bool
) -> dict[int, list[LoggedEvent]]:
    """Return the first `share` events of each window of the log, all of one target, by partition and in order.

    One statement reads many of them, because a batch is small where events come in all the time: a statement for each
    took longer than everything else.
    """
    by_partition: dict[int, list[LoggedEvent]] = {}
    if not windows:
        return by_partition
    search = _search(connection.dialect.name, windows[0].target_id, newest=newest).replace("{share}", f"{share:d}")
    for row in search_each(connection, search, windows):
        logged = logged_event(row, newest=newest)
        by_partition.setdefault(logged.partition, []).append(logged)
    for events in by_partition.values():  # no database promises the order of a union's rows
        events.sort(key=attrgetter("seq"))
    return by_partition


@lru_cache(maxsize=1024)
def _search(dialect: str, target_id: int, *, newest: bool) -> str:
    """Return the text of the query for one window, with its four values in braces; building it takes a millisecond."""
    places = (sa.literal_column(f"{{{name}}}", sa.BigInteger) for name in ("partition", "after", "until", "share"))
    query = _select_ahead(target_id, *places, newest=newest)
    made: Any = sa.make_url(f"{dialect}://").get_dialect()
    # With another style of parameters each percent sign would be doubled.
    return str(query.compile(dialect=made(paramstyle="named"), compile_kwargs={"literal_binds": True}))


def _select_ahead(
    target_id: int,
    partition: sa.ColumnElement[int],
    position: sa.ColumnElement[int],
    until: sa.ColumnElement[int],
    share: sa.ColumnElement[int],
    *,
    newest: bool,
) -> sa.Select[Any]:
    e = tables.events.c
    return (
        select_logged(target_id, newest=newest)
        .where(e.partition == partition, e.seq > position, e.seq <= until, is_for(target_id))
        .order_by(e.partition, e.seq)
        .limit(share)
    )


def logged_event(row: Any, *, newest: bool) -> LoggedEvent:
    """Convert a row of `select_logged`, which was built with the same `newest`."""
    event = Event(*row[:8])
    if row[12]:  # rare, so other events should not pay for it
        event = event._replace(trace=row[12])
    return LoggedEvent(event, row[8], row[9], row[10], row[11], row[13] if newest else "")


def with_records(connection: sa.Connection, events: Sequence[LoggedEvent]) -> tuple[list[LoggedEvent], int | None]:
    """Return the first of these events with their records, and the seq of the first one beyond the budget of bytes.

    The events are in the order of seq. At least one is within the budget. An event that has left the log is left out.
    """
    records = within_budget(connection, ((one.partition, one.seq, one.event.record) for one in events))
    beyond = events[len(records)].seq if len(records) < len(events) else None
    return [
        logged if logged.event.record else logged._replace(event=logged.event._replace(record=record))
        for logged, record in zip(events, records, strict=False)
        if record is not None
    ], beyond


def object_key(logged: LoggedEvent) -> ObjectKey:
    """Return the key of an event's object."""
    return ObjectKey(logged.event.bucket, logged.event.key, logged.partition, logged.key_hash)


def histories(events: Iterable[LoggedEvent]) -> dict[ObjectKey, list[Entry]]:
    """Return the events that change a bucket's content, by key."""
    by_object: dict[ObjectKey, list[Entry]] = {}
    for logged in events:
        event = logged.event
        if content_change(event.name) is not ContentChange.NOTHING:
            hides = hides_older(event.name, event.record)
            entry = Entry(logged.seq, event.name, event.version, event.sequencer, hides)
            by_object.setdefault(object_key(logged), []).append(entry)
    return by_object


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
