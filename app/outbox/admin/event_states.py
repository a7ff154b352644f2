"""Read where events stand at each of their targets, and keep a bounded record of the attempts there.

Workers record attempts some seconds after them, beside their deliveries (`workers.telemetry.attempt_recorder`): the
record is for people, and no delivery depends on it. A row of delivered events stands for a run of them: those of one
partition from `first_seq` to `last_seq` that go to the target, and of these only such as a replay selects if it
is a replay's. Of each target the last rows (`policies.ATTEMPTS`) are kept of delivered events, of failures and of
refusals as unavailable: neither many deliveries nor a long outage displace the failures.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, NamedTuple

import orjson
import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox import tables
from app.outbox.column_values import NEVER, NO_LIMIT, WHOLE_LOG, clean_reason
from app.outbox.engine.database import Database
from app.outbox.engine.many_rows import chunks
from app.outbox.log.append import key_hash
from app.outbox.log.reading import Reserve, reserve_nothing, small_record, within_budget
from app.outbox.policies import ATTEMPTS

DELIVERED, SUPERSEDED, UNCHANGED, FAILED, REJECTED, UNAVAILABLE = OUTCOMES = (
    "delivered", "superseded", "unchanged", "failed", "rejected", "unavailable",
)  # fmt: skip
_SETTLED = (DELIVERED, SUPERSEDED, UNCHANGED)
_RINGS = (0, 1, 2)  # settled events, failed attempts, refusals as unavailable


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt at one event, or at a run of events that had the same outcome in one call to the target.

    `at` is when it was settled (ms), `duration` how long the target took for the whole call (ms), `attempt` the number
    of an event's attempt if it counts as one, else 0. `superseded` and `unchanged` events were not sent. `exchange` is
    the request of the last event and its answer, as JSON (`app.resources.event.Exchange`), None if the target has no
    requests that can be shown, and in a timeline.
    """

    target_id: int
    partition: int
    first_seq: int
    last_seq: int
    at: int
    outcome: str
    events: int = 1
    duration: int = 0
    attempt: int = 0
    replay_id: int = WHOLE_LOG
    reason: str = ""
    exchange: str | None = None

    @property
    def is_settled(self) -> bool:
        """Whether its events need no further attempt."""
        return self.outcome in _SETTLED


def bounded(reason: str) -> str:
    """Return the reason as it is kept: storable, in one line of at most 500 characters."""
    return clean_reason(reason[: ATTEMPTS.max_reason_characters])


def record_attempts(connection: sa.Connection, attempts: Sequence[Attempt]) -> None:
    """Add attempts. The caller has them trimmed from time to time."""
    if attempts:
        connection.execute(tables.attempts.insert(), [{"ring": _ring(one), **_values(one)} for one in attempts])


def trim_attempts(connection: sa.Connection, target_id: int) -> None:
    """Delete the oldest attempts at a target, and the exchanges of older ones, beyond the bounds.

    It reads as many rows as are kept.
    """
    a = tables.attempts.c
    for ring in _RINGS:
        mine = (a.target_id == target_id, a.ring == ring)
        newest_gone = sa.select(a.id).where(*mine).order_by(a.id.desc()).offset(ATTEMPTS.max_rows).limit(1)
        last = connection.execute(newest_gone).scalar()
        if last is not None:
            connection.execute(tables.attempts.delete().where(*mine, a.id <= last))
    for ring in _RINGS[1:]:  # what is settled has none
        with_exchange = (a.target_id == target_id, a.ring == ring, a.exchange.is_not(None))
        # Added up here: in a window function over this index MySQL 8.0.12 reads the rows of other rings.
        sizes = sa.select(a.id, sa.func.length(a.exchange)).where(*with_exchange).order_by(a.id.desc())
        left = ATTEMPTS.max_exchange_characters
        last = next((row_id for row_id, size in connection.execute(sizes).all() if (left := left - size) < 0), None)
        if last is not None:
            connection.execute(tables.attempts.update().where(*with_exchange, a.id <= last).values(exchange=None))


def forget_attempts(connection: sa.Connection) -> None:
    """Delete the attempts of targets that do not exist any more."""
    a = tables.attempts.c
    known = set(connection.execute(sa.select(tables.targets.c.id)).scalars())
    following = sa.select(sa.func.min(a.target_id)).where(a.target_id > sa.bindparam("last"))
    last: int | None = -1
    while (last := connection.execute(following, {"last": last}).scalar()) is not None:
        if last not in known:
            connection.execute(tables.attempts.delete().where(a.target_id == last))


class Timeline(NamedTuple):
    """The last attempts at an event at one target, oldest first.

    And the exchange of the last one that has one, as JSON or empty, with the time of that attempt (ms).
    """

    attempts: Sequence[Attempt] = ()
    exchange: str = ""
    exchange_at: int = 0


def timelines(connection: sa.Connection, event: Any) -> Mapping[TargetId, Timeline]:
    """Return what is recorded of the attempts at an event, a row of the log, at each of its targets.

    An attempt at a run of events has the exchange of the last one of them; one that succeeded has none. The cost is
    bounded by `policies.ATTEMPTS`, however large the log is.
    """
    a, t = tables.attempts.c, tables.targets.c
    of_target = (a.target_id == sa.bindparam("of_target"), a.partition == event.partition)
    query = (
        sa.select(*(column for column in a if column is not a.exchange), sa.null().label("exchange"))
        .where(*of_target, a.last_seq >= event.seq, a.first_seq <= event.seq)
        .order_by(a.at.desc(), a.id.desc())
        .limit(ATTEMPTS.max_read_attempts)
    )
    last_exchange = (
        sa.select(a.at, a.exchange)
        .where(*of_target, a.last_seq == event.seq, a.exchange.is_not(None))
        .order_by(a.id.desc())
        .limit(1)
    )
    ids = [int(part) for part in event.targets.split(",") if part]
    by_target = {}
    for row in connection.execute(sa.select(t.id, t.type, t.name).where(t.id.in_(ids))).all():
        attempts = [_attempt(one) for one in connection.execute(query, {"of_target": row.id})]
        last = connection.execute(last_exchange, {"of_target": row.id}).first()
        at, exchange = (0, "") if last is None else (last.at, last.exchange)
        by_target[TargetId(row.type, row.name)] = Timeline(attempts[::-1], exchange, at)
    replays = {attempt.replay_id for line in by_target.values() for attempt in line.attempts} - {WHOLE_LOG}
    selecting = _selecting(connection, event, replays) | {WHOLE_LOG} if replays else {WHOLE_LOG}

    def concerns_event(attempt: Attempt) -> bool:
        return attempt.first_seq == attempt.last_seq or attempt.replay_id in selecting

    return {
        target: line._replace(attempts=list(filter(concerns_event, line.attempts)))
        for target, line in by_target.items()
    }


def _selecting(connection: sa.Connection, event: Any, replay_ids: Iterable[int]) -> set[int]:
    """Return those of the replays that select the event."""
    r = tables.replays.c
    rows = connection.execute(sa.select(tables.replays).where(r.id.in_(sorted(replay_ids))))
    return {
        row.id
        for row in rows
        if row.since <= event.received_at < row.before
        and row.bucket in ("", event.bucket)
        and event.key.startswith(row.prefix)
        and (not (names := orjson.loads(row.events)) or event.name in names)
    }


def _ring(attempt: Attempt) -> int:
    return 0 if attempt.is_settled else 2 if attempt.outcome == UNAVAILABLE else 1


_NAMES = Attempt.__slots__
_of_row = attrgetter(*_NAMES)


def _values(attempt: Attempt) -> dict[str, Any]:
    return dict(zip(_NAMES, _of_row(attempt), strict=True))


def _attempt(row: Any) -> Attempt:
    return Attempt(*_of_row(row))


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
