"""Deliver retained events again: a temporary cursor in each partition over a part of the log.

In its partitions a replay goes first and the log's own cursor waits, so that per object the target still sees one
order. Its events are counted as recorded once more when it reaches them, so that the counters balance at any moment.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import orjson
import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox import tables
from app.outbox.delivery.due_work import OFFERED
from app.outbox.delivery.leases import REVOKED
from app.outbox.engine.database import Database, now_ms
from app.outbox.engine.locks import lock_cursors, lock_tail
from app.outbox.registry import UnknownTarget


@dataclass(frozen=True, slots=True)
class Selection:
    """Which events: received in [since, before) (ms), of a bucket, under a prefix, of some names; empty = any."""

    since: int = 0
    before: int = tables.NEVER
    bucket: str = ""
    prefix: str = ""
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Replay:
    """A replay as it is now.

    `replayed` is how many events it has delivered, superseded, parked or given up so far. `advanced` of `length` is how
    much of the log it has passed, in sequence numbers summed over its partitions; they are equal when it is finished.
    """

    replay_id: int
    target: TargetId
    selection: Selection
    created_at: int
    replayed: int
    advanced: int
    length: int

    @property
    def finished(self) -> bool:
        """Whether every selected event was delivered again, parked or given up."""
        return self.advanced >= self.length

    @property
    def progress(self) -> float:
        """How much of the log it has passed, from 0 to 1."""
        return 1.0 if self.finished else self.advanced / self.length


class Replays:
    """Begin and list replays."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(self, target: TargetId, selection: Selection) -> Replay:
        """Start delivering the selected events that the target was past already; those pending come anyway.

        Takes as long with a million events as with one: they are counted when they are reached. Recording events never
        waits for it. Raises `UnknownTarget`.
        """
        t, c = tables.targets.c, tables.cursors.c
        now = now_ms()
        with self._database.writing() as connection:
            lock_tail(connection)  # what is in the log now is there until the replay has passed it
            row_id = connection.execute(
                sa.select(t.id).where(t.type == target.type, t.name == target.name)
            ).scalar_one_or_none()
            oldest = {} if row_id is None else _oldest(connection, row_id)
            # Locked, so that no settlement moves a position between here and the commit.
            cursors = [] if row_id is None else lock_cursors(connection, row_id)
            if not cursors:
                raise UnknownTarget(target)
            made = connection.execute(
                tables.replays.insert().values(
                    target_id=row_id,
                    created_at=now,
                    since=selection.since,
                    before=selection.before,
                    bucket=selection.bucket,
                    prefix=selection.prefix,
                    events=orjson.dumps(selection.names).decode(),
                )
            )
            replay_id = made.inserted_primary_key[0]
            new = [
                {"target_id": row_id, "partition": row.partition, "replay_id": replay_id}
                | {"position": first - 1, "begins_after": first - 1, "until": row.position}
                for row in cursors
                if (first := oldest.get(row.partition, row.position + 1)) <= row.position
            ]
            if new:
                connection.execute(tables.cursors.insert(), new)
            # A worker at one of these partitions does not know of the replay: its lease is not renewed and runs out.
            connection.execute(
                tables.cursors.update()
                .where(c.target_id == row_id, c.replay_id == tables.WHOLE_LOG, c.lease_token.not_in(["", OFFERED]))
                .values(lease_token=REVOKED)
            )
        length = sum(cursor["until"] - cursor["position"] for cursor in new)
        return Replay(replay_id, target, selection, now, 0, 0, length)

    def get(self, replay_id: int) -> Replay:
        """The replay of this number, which must be there."""
        [found] = self._read(tables.replays.c.id == replay_id)
        return found

    def list(self) -> Sequence[Replay]:
        """Every replay, newest first."""
        return self._read(sa.true())

    def _read(self, chosen: sa.ColumnElement[bool]) -> Sequence[Replay]:
        r, t, c = tables.replays.c, tables.targets.c, tables.cursors.c
        sums = {
            "replayed": c.replayed,
            "advanced": c.position - c.begins_after,
            "length": c.until - c.begins_after,
        }
        cursors = (
            sa.select(c.replay_id, *(sa.func.sum(column).label(name) for name, column in sums.items()))
            .where(c.replay_id != tables.WHOLE_LOG)
            .group_by(c.replay_id)
            .subquery()
        )
        query = (
            sa.select(tables.replays, t.type, t.name)
            .add_columns(*(sa.func.coalesce(cursors.c[name], 0).label(f"{name}_now") for name in sums))
            .join_from(tables.replays, tables.targets)
            .join(cursors, cursors.c.replay_id == r.id, isouter=True)
            .where(chosen)
            .order_by(r.id.desc())
        )
        with self._database.reading() as connection:
            return [
                Replay(
                    row.id,
                    TargetId(row.type, row.name),
                    Selection(row.since, row.before, row.bucket, row.prefix, tuple(orjson.loads(row.events))),
                    row.created_at,
                    # In the partitions that it has finished, and in the others.
                    row.replayed + int(row.replayed_now),
                    row.passed + int(row.advanced_now),
                    row.passed + int(row.length_now),
                )
                for row in connection.execute(query)
            ]


def _oldest(connection: sa.Connection, target_id: int) -> dict[int, int]:
    """The seq of the log's oldest event in each partition that has any."""
    c, e = tables.cursors.c, tables.events.c
    first = (
        sa.select(e.seq)
        .where(e.partition == c.partition)
        .order_by(e.seq)
        .limit(1)
        .correlate(tables.cursors)
        .scalar_subquery()
    )
    query = sa.select(c.partition, first.label("seq")).where(c.target_id == target_id, c.replay_id == tables.WHOLE_LOG)
    return {row.partition: row.seq for row in connection.execute(query) if row.seq is not None}
