"""Read where events stand: each event's delivery state at each of its targets, and the history of an object."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import orjson
import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox import tables
from app.outbox.admin.attempts import Attempt, Timeline, timelines
from app.outbox.column_values import NEVER, NO_LIMIT, WHOLE_LOG
from app.outbox.engine.database import Database
from app.outbox.engine.many_rows import chunks
from app.outbox.log.append import key_hash
from app.outbox.log.reading import Reserve, reserve_nothing, small_record, within_budget

PENDING, PARKED, DEAD, SETTLED = STATES = ("pending", "parked", "dead", "settled")
DISCARDED = "discarded"  # of an event that was never recorded for the target, because its queue was full


@dataclass(frozen=True, slots=True)
class DeliveryState:
    """One event's state at one target: `pending`, `parked`, `dead`, `discarded`, or `settled`.

    A settled one was delivered or superseded. `reason` is the result of its last attempt, or why it was discarded;
    empty for a parked event that waits behind another one of its object. `history` has the last attempts of a parked or
    dead event, as (time in ms, reason), and `next_try` (ms) is when a parked one is due: 0 at once, None if it waits
    behind another one. `timeline` has the recorded attempts, oldest first, and `exchange` the request and answer of the
    last one that failed and has them (JSON), and when that was (ms), if they were read.
    """

    target: TargetId
    state: str
    reason: str = ""
    attempts: int = 0
    history: Sequence[tuple[int, str]] = ()
    next_try: int | None = None
    timeline: Sequence[Attempt] = ()
    exchange: str = ""
    exchange_at: int = 0


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """An event of the log. Times are milliseconds since 1970. `record` is empty if it was not read."""

    event_id: str
    seq: int
    name: str
    version: str
    time: int
    received_at: int
    delivery_states: Sequence[DeliveryState]
    record: str = ""
    trace: str = ""
    bucket: str = ""
    key: str = ""
    origin: str = ""


def recorded_events(connection: sa.Connection, rows: Sequence[Any]) -> list[RecordedEvent]:
    """Return the events of rows of the log, in their order, with their states.

    The rows need every column but `record`. The connection reads a snapshot: so it sees an event that moves between
    tables in one of them.
    """
    t, c = tables.targets.c, tables.cursors.c
    targets = connection.execute(sa.select(t.id, t.type, t.name, t.queue_limit)).all()
    ids = {row.id: TargetId(row.type, row.name) for row in targets}
    limits = {row.id: row.queue_limit for row in targets}
    seqs: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        seqs[row.partition].append(row.seq)
    query = sa.select(c.target_id, c.partition, c.position).where(c.replay_id == WHOLE_LOG, c.partition.in_(seqs))
    positions = {(row.target_id, row.partition): row.position for row in connection.execute(query)}
    special: dict[tuple[int, int], DeliveryState] = {}  # by target and seq, which is that of one event
    for partition, of_partition in seqs.items():
        for some in chunks(of_partition):
            special |= _parked(connection, ids, partition, some) | _dead(connection, ids, partition, some)
    return [
        RecordedEvent(
            event_id=row.id,
            seq=row.seq,
            name=row.name,
            version=row.version,
            time=row.time,
            received_at=row.received_at,
            delivery_states=[
                _discarded(ids[-target], limits[-target])
                if target < 0
                else special.get((target, row.seq))
                or DeliveryState(
                    ids[target], SETTLED if row.seq <= positions.get((target, row.partition), 0) else PENDING
                )
                for target in map(int, filter(None, row.targets.split(",")))
                if abs(target) in ids
            ],
            record=getattr(row, "record", ""),
            trace=row.trace,
            bucket=row.bucket,
            key=row.key,
            origin=row.origin,
        )
        for row in rows
    ]


def _discarded(target: TargetId, limit: int) -> DeliveryState:
    now = f"; queue_limit is {limit:,} now" if limit < NO_LIMIT else ""
    return DeliveryState(target, DISCARDED, f"its queue was full{now}")


_Special = dict[tuple[int, int], DeliveryState]


def _parked(connection: sa.Connection, ids: dict[int, TargetId], partition: int, seqs: Sequence[int]) -> _Special:
    p = tables.parked.c
    query = sa.select(p.target_id, p.seq, p.not_before, p.attempts, p.history)
    states = {}
    for row in _known(connection.execute(query.where(p.partition == partition, p.seq.in_(seqs))), ids):
        history = orjson.loads(row.history)
        states[row.target_id, row.seq] = DeliveryState(
            ids[row.target_id],
            PARKED,
            str(history[-1][1]) if history else "",
            row.attempts,
            [(at, reason) for at, reason in history],
            None if row.not_before == NEVER else row.not_before,
        )
    return states


def _dead(connection: sa.Connection, ids: dict[int, TargetId], partition: int, seqs: Sequence[int]) -> _Special:
    d = tables.dead_letters.c
    query = sa.select(d.target_id, d.seq, d.reason, d.attempts, d.history)
    return {
        (row.target_id, row.seq): DeliveryState(
            ids[row.target_id],
            DEAD,
            row.reason,
            row.attempts,
            [(at, reason) for at, reason in orjson.loads(row.history)],
        )
        for row in _known(connection.execute(query.where(d.partition == partition, d.seq.in_(seqs))), ids)
    }


def _known(rows: Iterable[Any], ids: dict[int, TargetId]) -> Iterable[Any]:
    return (row for row in rows if row.target_id in ids)


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
