"""Rows of the outbox as a worker or a drain would have written them."""

from __future__ import annotations

import orjson
import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox import tables
from app.outbox.engine.database import Database, now_ms
from app.outbox.processes import BEAT, Process, record_process
from app.release import VERSION


def bury(database: Database, target: TargetId, reason: str = "422 no") -> None:
    """Make dead letters of all that a target has pending, as workers would; the counters stay right."""
    e, c = tables.events.c, tables.cursors.c
    with database.writing() as connection:
        row = connection.execute(sa.select(tables.targets.c.id).where(tables.targets.c.name == target.name)).one()
        head = connection.execute(sa.select(tables.log_head.c.last_seq)).scalar_one()
        for event in connection.execute(sa.select(e.partition, e.seq, e.id).order_by(e.seq)).all():
            connection.execute(
                tables.dead_letters.insert().values(
                    target_id=row.id, partition=event.partition, seq=event.seq, event_id=event.id, reason=reason,
                    attempts=3, first_tried=1_795_000_000_000, last_tried=1_795_000_001_000 + event.seq,
                    history=orjson.dumps([[1_795_000_000_000, reason]]).decode(),
                )
            )  # fmt: skip
            partition = (c.target_id == row.id, c.partition == event.partition)
            connection.execute(tables.cursors.update().where(*partition).values(freed=c.freed + 1))
        connection.execute(tables.cursors.update().where(c.target_id == row.id).values(position=head))


def heartbeats(database: Database, age: int) -> None:
    """Have the drain, and the beat that sends it, run so many milliseconds ago."""
    with database.writing() as connection:
        connection.execute(tables.heartbeats.delete())
        connection.execute(tables.heartbeats.insert().values(name="drain", at=now_ms() - age))
        connection.execute(tables.workers.delete().where(tables.workers.c.pool == BEAT))
    record_process(database, Process("here:1:beat", "beat@here", VERSION, BEAT, [BEAT]), age=age)
