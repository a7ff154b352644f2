"""Replay retained events: deliver them again by a temporary cursor in each partition over a part of the log.

In its partitions a replay goes first and the log's own cursor waits, so that the events of each object stay in order.
Replayed events count as recorded once more when the replay reaches them, so that the counters balance at any time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import orjson
import sqlalchemy as sa

from app.config.arn import TargetId
from app.events.names import EVERY, UnknownEventName, expand, families, nearest
from app.events.normalize import MAX_KEY_BYTES
from app.outbox import audit, tables
from app.outbox.column_values import NEVER, WHOLE_LOG
from app.outbox.declared import UnknownTarget, find_target
from app.outbox.delivery import transitions
from app.outbox.engine.database import Database, inserted_id, now_ms
from app.outbox.engine.many_rows import lock_cursors, lock_tail, own_cursors, repeated_after_deadlock
from app.outbox.errors import BadSelection, UnknownReplay
from app.outbox.policies import REPLAYS


@dataclass(frozen=True, slots=True)
class Selection:
    """Which events to replay: received in [since, before) (ms), by bucket, key prefix and event names; empty = any."""

    since: int = 0
    before: int = NEVER
    bucket: str = ""
    prefix: str = ""
    names: tuple[str, ...] = ()


def checked(selection: Selection) -> Selection:
    """Return the selection with wildcards such as `s3:ObjectCreated:*` expanded to event names.

    The wildcards stay among them, for names that are not known.
    Raises `BadSelection` for values that no event can have or that no database can search for.
    """
    if len(selection.names) > REPLAYS.max_names:
        raise BadSelection(
            "events", f"has {len(selection.names)} names", f"give at most {REPLAYS.max_names}, or none for all"
        )
    if len(selection.bucket) > REPLAYS.max_bucket_characters or not selection.bucket.isprintable():
        raise BadSelection(
            "bucket", "is no bucket's name", f"give up to {REPLAYS.max_bucket_characters} printable characters"
        )
    # Keys may contain control characters other than NUL.
    if "\0" in selection.prefix or len(selection.prefix.encode(errors="replace")) > MAX_KEY_BYTES:
        raise BadSelection("prefix", "is that of no key", f"give up to {MAX_KEY_BYTES} bytes without U+0000")
    try:
        selection.prefix.encode()
    except UnicodeEncodeError:
        raise BadSelection("prefix", "is not text", "write it as UTF-8") from None
    chosen: dict[str, None] = {}
    for name in selection.names:
        try:
            chosen |= dict.fromkeys(sorted(expand(name)) + sorted(families(name)))
        except UnknownEventName:
            close = nearest(name)
            hint = f"did you mean {close}?" if close else "leave it out for every event"
            raise BadSelection("events", f"has {name[:80]!r}, which is no event", hint) from None
    return replace(selection, names=() if EVERY in chosen else tuple(chosen))


@dataclass(frozen=True, slots=True)
class Replay:
    """The current state of a replay.

    `replayed` is how many events it has delivered, superseded, parked or made dead letters so far. `advanced` of
    `length` is how much of the log it has passed, in sequence numbers summed over its partitions; they are equal when
    it is finished. A cancelled replay is finished too.
    """

    replay_id: int
    target: TargetId
    selection: Selection
    created_at: int
    replayed: int
    advanced: int
    length: int
    cancelled_at: int = 0  # ms, 0: not cancelled

    @property
    def finished(self) -> bool:
        """True if the replay has handled every selected event, or was cancelled before."""
        return self.advanced >= self.length

    @property
    def progress(self) -> float:
        """The share of the log that it has passed, from 0 to 1."""
        return 1.0 if self.finished else self.advanced / self.length


class Replays:
    """Begin, cancel and list replays."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @repeated_after_deadlock
    def begin(self, target: TargetId, selection: Selection) -> Replay:
        """Start to deliver again the selected events before the target's cursors; pending ones are delivered anyway.

        The time does not depend on the number of events, which are counted when they are reached. It never blocks the
        recording of events. Raises `UnknownTarget` or `BadSelection`.
        """
        selection = checked(selection)
        t = tables.targets.c
        now = now_ms()
        with self._database.writing() as connection:
            lock_tail(connection)  # no event may leave the log until the replay has passed it
            row_id = connection.execute(
                sa.select(t.id).where(t.type == target.type, t.name == target.name)
            ).scalar_one_or_none()
            oldest = {} if row_id is None else _oldest(connection, row_id)
            # Lock the cursors, so that no settlement moves a position before the commit.
            locked = [] if row_id is None else lock_cursors(connection, row_id)
            if row_id is None or not locked:
                find_target(connection, target)  # raises, and names a similar one
                raise UnknownTarget(target)
            inserted = connection.execute(
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
            replay_id = inserted_id(inserted)
            ranges = {
                row.partition: (first - 1, row.position)
                for row in locked
                if (first := oldest.get(row.partition, row.position + 1)) <= row.position
            }
            transitions.begin_replay(connection, row_id, replay_id, ranges)
            transitions.revoke_leases(connection, row_id)  # of workers that do not know of the replay
            audit.record(connection, "replay.begin", f"replay:{replay_id}", {"target": str(target)} | _facts(selection))
        length = sum(until - after for after, until in ranges.values())
        return Replay(replay_id, target, selection, now, 0, 0, length)

    @repeated_after_deadlock
    def cancel(self, replay_id: int) -> Replay:
        """Cancel a replay at its current position; events already delivered or parked are kept. Idempotent.

        A finished replay does not change. After the return, no worker settles events of the replay. Raises
        `UnknownReplay`.
        """
        r, c = tables.replays.c, tables.cursors.c
        with self._database.writing() as connection:
            target_id = connection.execute(sa.select(r.target_id).where(r.id == replay_id)).scalar_one_or_none()
            if target_id is None:
                raise UnknownReplay(replay_id)
            lock_cursors(connection, target_id)  # so that no settlement moves the replay concurrently
            mine = (c.target_id == target_id, c.replay_id == replay_id)
            partitions = connection.execute(sa.select(c.partition).where(*mine)).scalars().all()
            for partition in partitions:
                transitions.end_replay(connection, target_id, replay_id, partition)
            if partitions:
                connection.execute(tables.replays.update().where(r.id == replay_id).values(cancelled_at=now_ms()))
                audit.record(connection, "replay.cancel", f"replay:{replay_id}")
                transitions.revoke_leases(connection, target_id, partitions)  # as in `begin`
        return self.get(replay_id)

    def get(self, replay_id: int) -> Replay:
        """Return the replay of this number. Raises `UnknownReplay`."""
        replays = self._read(tables.replays.c.id == replay_id)
        if not replays:
            raise UnknownReplay(replay_id)
        return replays[0]

    def list(self) -> Sequence[Replay]:
        """Return every replay, newest first."""
        return self._read(sa.true())

    def _read(self, chosen: sa.ColumnElement[bool]) -> Sequence[Replay]:
        r, t, c = tables.replays.c, tables.targets.c, tables.cursors.c
        sums = {
            "replayed": c.replayed,
            "advanced": c.position - c.begins_after,
            "length": c.until - c.begins_after,
        }
        running = (
            sa.select(c.replay_id, *(sa.func.sum(column).label(name) for name, column in sums.items()))
            .where(c.replay_id != WHOLE_LOG)
            .group_by(c.replay_id)
            .subquery()
        )
        query = (
            sa.select(tables.replays, t.type, t.name)
            .add_columns(*(sa.func.coalesce(running.c[name], 0).label(f"{name}_now") for name in sums))
            .join_from(tables.replays, tables.targets)
            .join(running, running.c.replay_id == r.id, isouter=True)
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
                    # Sums of the finished partitions and of the others.
                    row.replayed + int(row.replayed_now),
                    row.passed + int(row.advanced_now),
                    row.passed + int(row.length_now),
                    row.cancelled_at,
                )
                for row in connection.execute(query)
            ]


def _facts(selection: Selection) -> dict[str, object]:
    """Return the members of a selection that are set."""
    return {
        name: value
        for name, value in (
            ("since", selection.since),
            ("before", selection.before if selection.before < NEVER else 0),
            ("bucket", selection.bucket),
            ("prefix", selection.prefix),
            ("events", list(selection.names)),
        )
        if value
    }


def _oldest(connection: sa.Connection, target_id: int) -> dict[int, int]:
    """Return the seq of the log's oldest event in each partition that has any."""
    c, e = tables.cursors.c, tables.events.c
    first = (
        sa.select(e.seq)
        .where(e.partition == c.partition)
        .order_by(e.seq)
        .limit(1)
        .correlate(tables.cursors)
        .scalar_subquery()
    )
    query = sa.select(c.partition, first.label("seq")).where(own_cursors(target_id))
    return {row.partition: row.seq for row in connection.execute(query) if row.seq is not None}
