"""Deliver retained events again: a temporary cursor in each lane over a part of the log.

In its lanes a replay goes first and the log's own cursor waits, so that per object the target still sees one order.
Its events are counted as recorded anew, so that the books balance while it runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import orjson
import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox import models as m
from app.outbox.database import Database, now_ms
from app.outbox.leases import OFFERED, REVOKED, ReplayLane
from app.outbox.registry import UnknownTarget
from app.outbox.store import selected


@dataclass(frozen=True, slots=True)
class Selection:
    """Which events: received in [since, before) (ms), of a bucket, under a prefix, of some names; empty = any."""

    since: int = 0
    before: int = m.NEVER
    bucket: str = ""
    prefix: str = ""
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Replay:
    """A replay as it stands."""

    replay_id: int
    target: TargetId
    selection: Selection
    created_at: int
    matched: int
    finished: bool


class Replays:
    """Begin, list and end replays."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(self, target: TargetId, selection: Selection) -> Replay:
        """Start delivering the selected events that the target was past already; those pending come anyway.

        Raises `UnknownTarget`.
        """
        t, c, e = m.targets.c, m.cursors.c, m.events.c
        now = now_ms()
        with self._database.writing() as connection:
            # The head's lock keeps the log as it is until the replay's ends are set.
            connection.execute(m.log_head.update().values(version=m.log_head.c.version + 1))
            row = connection.execute(sa.select(t.id).where(t.type == target.type, t.name == target.name)).one_or_none()
            if row is None:
                raise UnknownTarget(target)
            made = connection.execute(
                m.replays.insert().values(
                    target_id=row.id,
                    created_at=now,
                    since=selection.since,
                    before=selection.before,
                    bucket=selection.bucket,
                    prefix=selection.prefix,
                    events=orjson.dumps(selection.names).decode(),
                    matched=0,
                )
            )
            replay_id = made.inserted_primary_key[0]
            # Locked, so that no settlement moves a position between here and the commit.
            cursors = connection.execute(
                sa.select(c.lane, c.position)
                .where(c.target_id == row.id, c.replay_id == m.WHOLE_LOG)
                .order_by(c.lane)
                .with_for_update()
            ).all()
            matched = 0
            for cursor in cursors:
                lane = ReplayLane(
                    replay_id, cursor.lane, 0, cursor.position, selection.since, selection.before,
                    selection.bucket, selection.prefix, selection.names,
                )  # fmt: skip
                count = connection.execute(
                    sa.select(sa.func.count())
                    .select_from(m.events)
                    .where(e.lane == cursor.lane, *selected(row.id, lane))
                ).scalar_one()
                matched += count
                if count:
                    connection.execute(
                        m.cursors.insert().values(
                            target_id=row.id, lane=cursor.lane, replay_id=replay_id, position=0, until=cursor.position
                        )
                    )
            # A worker at one of these lanes does not know of the replay: its lease is not renewed and runs out.
            connection.execute(
                m.cursors.update()
                .where(c.target_id == row.id, c.replay_id == m.WHOLE_LOG, c.lease_token.not_in(["", OFFERED]))
                .values(lease_token=REVOKED)
            )
            connection.execute(m.targets.update().where(t.id == row.id).values(recorded=t.recorded + matched))
            connection.execute(m.replays.update().where(m.replays.c.id == replay_id).values(matched=matched))
        return Replay(replay_id, target, selection, now, matched, finished=not matched)

    def progress(self, replay_id: int) -> tuple[int, int]:
        """How far a replay's cursors have come and how far they have to, in seqs; equal when it is over."""
        c = m.cursors.c
        query = sa.select(*(sa.func.coalesce(sa.func.sum(column), 0) for column in (c.position, c.until)))
        with self._database.reading() as connection:
            come, whole = connection.execute(query.where(c.replay_id == replay_id)).one()
        return int(come), int(whole)

    def list(self, replay_id: int | None = None) -> Sequence[Replay]:
        """Every replay, or the one asked for, newest first."""
        r, t, c = m.replays.c, m.targets.c, m.cursors.c
        running = sa.exists().where(c.replay_id == r.id, c.position < c.until).correlate(m.replays)
        query = sa.select(m.replays, t.type, t.name, running.label("running")).join_from(m.replays, m.targets)
        if replay_id is not None:
            query = query.where(r.id == replay_id)
        with self._database.reading() as connection:
            return [
                Replay(
                    row.id,
                    TargetId(row.type, row.name),
                    Selection(row.since, row.before, row.bucket, row.prefix, tuple(orjson.loads(row.events))),
                    row.created_at,
                    row.matched,
                    finished=not row.running,
                )
                for row in connection.execute(query.order_by(r.id.desc()))
            ]
