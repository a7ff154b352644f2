"""Read an object's history: its events in the log, and each event's delivery state at each of its targets."""

from collections.abc import Sequence
from dataclasses import dataclass

import orjson
import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox import tables
from app.outbox.engine.database import Database
from app.outbox.log.batch import key_hash
from app.outbox.markers import WHOLE_LOG


@dataclass(frozen=True, slots=True)
class DeliveryState:
    """One event's state at one target: `pending`, `parked`, `dead`, or `settled` (delivered or superseded).

    `reason` is the result of its last attempt; empty for a parked event that waits behind another one of its object.
    """

    target: TargetId
    state: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """One event of the object's history. Times are milliseconds since 1970."""

    event_id: str
    seq: int
    name: str
    version: str
    time: int
    received_at: int
    delivery_states: Sequence[DeliveryState]
    record: str
    trace: str = ""


def object_history(database: Database, bucket: str, key: str, *, limit: int = 1000) -> list[RecordedEvent]:
    """Return the object's last `limit` events, oldest first; empty if the log has none (any more)."""
    e, t, c, p, d = tables.events.c, tables.targets.c, tables.cursors.c, tables.parked.c, tables.dead_letters.c
    with database.snapshot() as connection:  # sees an event that is moved between tables in one of them
        query = (
            sa.select(tables.events)
            .where(e.key_hash == key_hash(bucket, key), e.bucket == bucket, e.key == key)
            .order_by(e.seq.desc())
            .limit(limit)
        )
        rows = list(reversed(connection.execute(query).all()))
        if not rows:
            return []
        partition, seqs = rows[0].partition, [row.seq for row in rows]
        ids = {row.id: TargetId(row.type, row.name) for row in connection.execute(sa.select(t.id, t.type, t.name))}
        query = sa.select(c.target_id, c.position).where(c.partition == partition, c.replay_id == WHOLE_LOG)
        positions = {row.target_id: row.position for row in connection.execute(query)}
        special: dict[tuple[int, int], tuple[str, str]] = {}
        for row in connection.execute(
            sa.select(p.target_id, p.seq, p.history).where(p.partition == partition, p.seq.in_(seqs))
        ):
            special[row.target_id, row.seq] = ("parked", _last_reason(row.history))
        for row in connection.execute(
            sa.select(d.target_id, d.seq, d.reason).where(d.partition == partition, d.seq.in_(seqs))
        ):
            special[row.target_id, row.seq] = ("dead", row.reason)
    return [
        RecordedEvent(
            event_id=row.id,
            seq=row.seq,
            name=row.name,
            version=row.version,
            time=row.time,
            received_at=row.received_at,
            delivery_states=[
                _delivery_state(ids[target], row.seq, positions.get(target, 0), special.get((target, row.seq)))
                for target in map(int, filter(None, row.targets.split(",")))
                if target in ids
            ],
            record=row.record,
            trace=row.trace,
        )
        for row in rows
    ]


def _last_reason(history: str) -> str:
    tried = orjson.loads(history)
    return str(tried[-1][1]) if tried else ""


def _delivery_state(target: TargetId, seq: int, position: int, special: tuple[str, str] | None) -> DeliveryState:
    if special is not None:
        return DeliveryState(target, *special)
    return DeliveryState(target, "settled" if seq <= position else "pending")
