"""Keep what mirrors need of events that leave the log, and delete what they no longer need.

When the event of a surviving version is purged, its record is copied to the version's row, for the newest versions of a
key: if newer versions are removed, a mirror restores the target's row from it.
"""

import math
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from app.outbox import tables
from app.outbox.engine.database import Database
from app.outbox.engine.locks import own_cursors
from app.outbox.engine.many_rows import chunks
from app.outbox.policies import RETENTION
from app.outbox.versions.object_versions import ObjectKey, drop

_V = tables.object_versions.c
_PLACE = (_V.sequencer, _V.tie, _V.placed)


def keep_records(connection: sa.Connection, partition: int, events: Sequence[Any]) -> None:
    """Copy the records that mirrors need of some events, in the transaction that then deletes these from the log.

    `events` are at most 1000 rows of the log with seq, key_hash, bucket, key and targets. A key's row is deleted when
    no version of it survives and its last event leaves the log. If it was deleted before, a retained older event, such
    as a dead letter, would be mistaken for the key's whole history. Locks the partition's cursors of the mirrors
    concerned, as a settlement does.
    """
    newest = {ObjectKey(row.bucket, row.key, partition, row.key_hash).digest: row.seq for row in events}
    targets = {int(target) for row in events for target in row.targets.split(",") if target}
    known: dict[int, list[str]] = {}
    for some in chunks(sorted(newest)):
        query = sa.select(_V.target_id, _V.id).where(_V.target_id.in_(sorted(targets)), _V.partition == partition)
        for row in connection.execute(query.where(_V.id.in_(some))):
            known.setdefault(row.target_id, []).append(row.id)
    if not known:
        return
    seqs = [row.seq for row in events]
    gone = _without_others(connection, partition, seqs, {newest[digest] for ids in known.values() for digest in ids})
    for target_id, objects in sorted(known.items()):
        _lock(connection, target_id, partition)
        mine = (_V.target_id == target_id, _V.partition == partition, _V.seq.in_(seqs))
        # The events that removed these versions leave the log: an event this late cannot be recognized any more.
        connection.execute(tables.object_versions.delete().where(*mine, _V.sequencer.is_(None), _V.id != _V.object))
        connection.execute(tables.object_versions.update().where(*mine).values(record=_record()))
        _trim(connection, target_id, partition, objects)
        _forget(connection, target_id, partition, [digest for digest in objects if newest[digest] in gone])


@dataclass(slots=True)
class UnusedProgress:
    """How far the searches of this process for unused rows have advanced: the last target and partition."""

    after: tuple[int, int] = (0, -1)
    ended: bool = True  # the last search has reached the end


def drop_unused(
    database: Database, progress: UnusedProgress | None = None, *, seconds: float = math.inf, batch: int = 1000
) -> int:
    """Delete rows of targets that were removed or are no longer mirrors, and return their number.

    It stops soon after `seconds`, and the next call continues at `progress`, or begins again after the end.
    Transactions are short; the cursors of mirrors are not locked.
    """
    progress = progress or UnusedProgress()
    if progress.ended:
        progress.after, progress.ended = (0, -1), False
    dropped, ends = 0, time.monotonic() + seconds
    while True:
        with database.reading() as connection:
            place = _next_place(connection, *progress.after)
            looks_used = place is not None and _is_used(_cursor(connection, *place))
        if place is None:
            progress.ended = True
            break
        count = 0
        if not looks_used:
            with database.writing() as connection:
                count = 0 if _lock(connection, *place) else drop(connection, *place, batch)
        dropped += count
        if count < batch:
            progress.after = place
        if time.monotonic() > ends:
            break
    return dropped


def _lock(connection: sa.Connection, target_id: int, partition: int) -> bool:
    """Lock the target's cursor in the partition, and return whether it is still a mirror's that missed no event."""
    return _is_used(_cursor(connection, target_id, partition, lock=True))


def _is_used(cursor: Any) -> bool:
    return cursor is not None and cursor.folded >= cursor.position


def _cursor(connection: sa.Connection, target_id: int, partition: int, *, lock: bool = False) -> Any:
    c = tables.cursors.c
    query = sa.select(c.position, c.folded).where(own_cursors(target_id, [partition]))
    return connection.execute(query.with_for_update() if lock else query).one_or_none()


def _next_place(connection: sa.Connection, target_id: int, partition: int) -> tuple[int, int] | None:
    """Return the next target and partition that has rows, by one step through the primary key."""
    beyond = sa.or_(_V.target_id > target_id, sa.and_(_V.target_id == target_id, _V.partition > partition))
    query = sa.select(_V.target_id, _V.partition).where(_V.target_id >= target_id, beyond)
    row = connection.execute(query.order_by(_V.target_id, _V.partition).limit(1)).one_or_none()
    return None if row is None else (row.target_id, row.partition)


def _record() -> Any:
    e = tables.events.c
    record = sa.select(e.record).where(e.partition == _V.partition, e.seq == _V.seq).correlate(tables.object_versions)
    return sa.case((_V.is_object, record.scalar_subquery()), else_="")


def _without_others(
    connection: sa.Connection, partition: int, removed: Sequence[int], asked: Collection[int]
) -> set[int]:
    """Return those of the `asked` events whose objects have no other events in the log than the `removed` ones."""
    e, other = tables.events.c, tables.events.alias("other")
    others = (
        sa.exists()
        .where(other.c.key_hash == e.key_hash, other.c.key == e.key, other.c.bucket == e.bucket)
        .where(other.c.seq.not_in(removed))
        .correlate(tables.events)
    )
    query = sa.select(e.seq).where(e.partition == partition, e.seq.in_(sorted(asked)), ~others)
    return set(connection.execute(query).scalars())


def _trim(connection: sa.Connection, target_id: int, partition: int, objects: Sequence[str]) -> None:
    """Delete layers of keys that lost events: covered layers, and those beneath the newest `RETENTION.max_layers`."""
    here = (_V.target_id == target_id, _V.partition == partition)
    keys = (*here, _V.id.in_(objects))
    key = tables.object_versions.alias()
    of_key = sa.and_(key.c.target_id == _V.target_id, key.c.partition == _V.partition, key.c.id == _V.object)
    covered = sa.select(_V.id).join_from(tables.object_versions, key, of_key).where(*here, _V.object.in_(objects))
    _delete(connection, here, covered.where(_V.id != _V.object, _V.record.is_not(None), _older(key.c)))
    for row in connection.execute(sa.select(_V.id, _last_kept().label("last")).where(*keys)).all():
        if row.last is not None:
            layer = connection.execute(sa.select(*_PLACE).where(*here, _V.id == row.last)).one()
            # Except for late events, layers are ordered as their events were received: checking the oldest is enough.
            oldest = (
                sa.select(_V.id, _V.record.is_not(None).label("purged")).order_by(*_PLACE).limit(RETENTION.batch_layers)
            )
            beneath = connection.execute(oldest.where(*here, _V.object == row.id, _V.id != row.id, _older(layer))).all()
            # Delete the layers beneath a deleted one too, even if their events are retained: none may become current.
            purged = [number for number, version in enumerate(beneath) if version.purged]
            gone = [version.id for version in beneath[: purged[-1] + 1]] if purged else []
            if gone:
                connection.execute(tables.object_versions.delete().where(*here, _V.id.in_(gone)))
                connection.execute(tables.object_versions.update().where(*here, _V.id == row.id).values(trimmed=True))


def _forget(connection: sa.Connection, target_id: int, partition: int, objects: Sequence[str]) -> None:
    """Delete the rows of keys without surviving versions."""
    if not objects:
        return
    here = (_V.target_id == target_id, _V.partition == partition)
    other = tables.object_versions.alias()
    same_key = sa.and_(
        other.c.target_id == _V.target_id,
        other.c.partition == _V.partition,
        other.c.object == _V.object,
        other.c.id != _V.id,
    )
    done = sa.or_(_V.seq == 0, _V.record.is_not(None))  # nothing covers it, or the covering event has left the log too
    _delete(connection, here, sa.select(_V.id).where(*here, _V.id.in_(objects), done, ~sa.exists().where(same_key)))


def _delete(connection: sa.Connection, here: tuple[sa.ColumnElement[bool], ...], which: sa.Select[tuple[str]]) -> None:
    # In two steps, because MySQL cannot delete from a table that the condition selects from.
    for some in chunks(connection.execute(which).scalars().all()):
        connection.execute(tables.object_versions.delete().where(*here, _V.id.in_(some)))


def _older(layer: Any) -> sa.ColumnElement[bool]:
    """Return the condition that a layer is beneath another one, given as a row or as columns."""
    return sa.or_(
        _V.sequencer < layer.sequencer,
        sa.and_(_V.sequencer == layer.sequencer, _V.tie < layer.tie),
        sa.and_(_V.sequencer == layer.sequencer, _V.tie == layer.tie, _V.placed < layer.placed),
    )


def _last_kept() -> Any:
    """Build the subquery for the id of a key's `RETENTION.max_layers`th layer from the top; NULL if it has fewer."""
    layer = tables.object_versions.alias()
    return (
        sa.select(layer.c.id)
        .where(layer.c.target_id == _V.target_id, layer.c.partition == _V.partition, layer.c.object == _V.object)
        .where(layer.c.sequencer.is_not(None))
        .order_by(layer.c.sequencer.desc(), layer.c.tie.desc(), layer.c.placed.desc())
        .limit(1)
        .offset(RETENTION.max_layers - 1)
        .correlate(tables.object_versions)
        .scalar_subquery()
    )
