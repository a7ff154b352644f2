"""Store the state of versioned objects for mirrors, beyond the retention of the event log.

Each key's events are folded once, and the result is stored by target and version. Only the holder of a partition's
lease folds, and it folds before it delivers: so every later holder knows the events that were sent. The cost of a batch
does not depend on the length of a key's history. The states of versions and keys are rows of `object_versions`, as
columns and JSON.

When the event of a surviving version is purged, its record is copied to the version's row, for the newest versions of a
key: if newer versions are removed, a mirror restores the target's row from it. What no mirror needs is deleted.
"""

import hashlib
import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

from app.events.frontends.registry import HIDING
from app.events.model import Event
from app.events.names import ContentChange, selectors_with
from app.events.order import Entry, Fold, Holding, KeyState, Layer, Place, VersionState, version_of
from app.outbox import tables
from app.outbox.delivery.leases import Lease, fence
from app.outbox.engine.database import Database
from app.outbox.engine.many_rows import chunks, own_cursors, repeated_after_deadlock
from app.outbox.log.reading import is_for, is_named, readable
from app.outbox.policies import RETENTION

_V = tables.object_versions.c


class ObjectKey(NamedTuple):
    """A key of a bucket, with its partition and key hash in the log."""

    bucket: str
    key: str
    partition: int
    key_hash: int

    @property
    def digest(self) -> str:
        """A digest of bucket and key, of 128 bits, so that clients cannot construct two keys with the same digest."""
        return _digest(f"{len(self.bucket)} {self.bucket}{self.key}")


def rows_of(target_id: int, key: ObjectKey, fold: Fold) -> Iterator[dict[str, Any]]:
    """Yield the rows that a fold changed; the key's own row comes last, with the seq of the covering event or 0."""
    if not fold.moved:
        return
    digest = key.digest
    common = {"target_id": target_id, "partition": key.partition, "object": digest}
    for version in fold.changed:
        state = fold.versions[version]
        layer = state.layer(version)
        places = [place for place in (state.created, state.removed, state.marked_first, state.marked_last) if place]
        seq = layer.place[2] if layer is not None and layer.is_object else max(place[2] for place in places)
        text = orjson.dumps([*_places(state), state.marked_sequencer, state.undeleted]).decode()
        yield common | _layer(layer) | {
            "id": version_id(digest, version), "seq": seq, "state": text, "trimmed": False,
        }  # fmt: skip
    known = fold.key
    cover = None if known.cover is None else Layer(known.cover, is_object=False)
    text = orjson.dumps([known.folded, known.latest, known.cover, known.created, known.unexplained]).decode()
    yield common | _layer(cover) | {
        "id": digest, "seq": known.cover[2] if known.cover else 0, "state": text, "trimmed": known.trimmed,
    }  # fmt: skip


def _layer(layer: Layer | None) -> dict[str, Any]:
    sequencer, tie, placed = (None, 0, 0) if layer is None else layer.place
    return {"sequencer": sequencer, "tie": tie, "placed": placed, "is_object": bool(layer and layer.is_object)}


def _places(state: VersionState) -> tuple[Place | None, ...]:
    return state.created, state.removed, state.marked_first, state.marked_last


def version_state(row: Any) -> VersionState:
    """Decode a version's row."""
    created, removed, first, last, sequencer, undeleted = orjson.loads(row.state)
    return VersionState(_place(created), _place(removed), _place(first), _place(last), sequencer, undeleted)


def _place(listed: Sequence[Any] | None) -> Place | None:
    return None if listed is None else (listed[0], listed[1], listed[2])


def key_state(row: Any) -> KeyState:
    """Decode a key's row."""
    folded, latest, cover, created, unexplained = orjson.loads(row.state)
    return KeyState(folded, latest, _place(cover), created, unexplained, bool(row.trimmed))


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def version_id(object_digest: str, version: str) -> str:
    """Return the id of a version's row, from the digest of its key."""
    return _digest(object_digest + version)


def _upsert(dialect: str) -> sa.Insert:
    """Build the statement that upserts a row; it keeps a purged record while the row represents the same event."""
    if dialect == "mysql":
        into = mysql.insert(tables.object_versions)
        return into.on_duplicate_key_update(_written(into.inserted))
    # Both have the same INSERT … ON CONFLICT. With RETURNING, SQLAlchemy sends PostgreSQL many rows in one statement.
    insert = postgresql.insert if dialect == "postgresql" else sqlite.insert
    upsert: Any = insert(tables.object_versions)
    upsert = upsert.on_conflict_do_update(
        index_elements=["target_id", "partition", "id"], set_=dict(_written(upsert.excluded))
    )
    written: sa.Insert = upsert.returning(_V.id) if dialect == "postgresql" else upsert
    return written


def _written(new: Any) -> list[tuple[str, Any]]:
    """Return the assignments in this order, because MySQL runs them one by one and `record` needs the old seq."""
    return [
        ("record", sa.case((_V.seq == new.seq, _V.record), else_=sa.null())),
        ("trimmed", sa.or_(_V.trimmed, new.trimmed)),
        *((name, new[name]) for name in ("seq", "sequencer", "tie", "placed", "is_object", "state")),
    ]


UPSERT = {dialect: _upsert(dialect) for dialect in ("sqlite", "postgresql", "mysql")}


_CONTENT = selectors_with(*set(ContentChange) - {ContentChange.NOTHING})
_HIDES_OLDER = sa.case(  # `hides_older`
    *(
        (sa.and_(tables.events.c.name.in_(names), tables.events.c.record.contains(source)), 1)
        for source, names in HIDING.items()
    ),
    else_=0,
).label("hides_older")
_HERE = (_V.target_id == sa.bindparam("of_target"), _V.partition == sa.bindparam("of_partition"))


class ObjectVersions:
    """The state of versioned keys for the target of a lease. `connection` is used for reading."""

    def __init__(self, database: Database, connection: sa.Connection, lease: Lease) -> None:
        self._database = database
        self._connection = connection
        self._lease = lease
        self._until: dict[int, int] = {}  # by partition, the seq up to which this object has folded events
        self._gaps: set[int] = set()  # partitions in which another policy delivered events since the last fold
        self._filled: set[int] = set()  # partitions that have rows
        self._read_partitions()

    def concerns(self, events: Sequence[Event], until: Mapping[int, int]) -> bool:
        """Return whether the next events, of partitions read up to `until`, must be folded before they are judged."""
        self._until |= until
        return any(event.version for event in events) or not self._filled.isdisjoint(until)

    def fold(self, events: Mapping[ObjectKey, Sequence[Entry]]) -> None:
        """Fold the next events of the lease's partitions; events folded already are skipped.

        Keys that never had a version are not stored and cost nothing. Raises `LeaseLost`; then nothing was written for
        that partition.
        """
        versioned = {key for key, entries in events.items() if any(entry.version for entry in entries)}
        self._close_gaps(key.partition for key in versioned)
        known = {key: entries for key, entries in events.items() if key in versioned or key.partition in self._filled}
        for partition, keys in _by_partition(known).items():
            digests = {key: key.digest for key in keys}
            ids = set(digests.values())
            ids.update(version_id(digests[key], version_of(entry)) for key in keys for entry in known[key])
            rows = {row.id: row for row in self._read(_NAMED, partition, ids)}
            folds = {key: _fold_onto(rows, digest, known[key]) for key, digest in digests.items() if digest in rows}
            unknown = [key for key in keys if key in versioned and key not in folds]
            self._write(partition, folds | self._folded_from_log(partition, unknown))

    def holdings(self, keys: Iterable[ObjectKey]) -> dict[ObjectKey, Holding]:
        """Return the bucket's content under each key, as known from its settled or folded events."""
        holdings: dict[ObjectKey, Holding] = {}
        for partition, some in self._known(keys):
            rows = {row.id: row for row in self._read(_TOPS, partition, {key.digest for key in some})}
            holdings |= {key: _holding(rows[key.digest]) for key in some if key.digest in rows}
            seeded = self._seed(partition, [key for key in some if key not in holdings])
            holdings |= {key: fold.key.holding(fold.top()) for key, fold in seeded.items()}
        return holdings

    def latest(self, keys: Iterable[ObjectKey]) -> dict[ObjectKey, str]:
        """Return the greatest comparable sequencer of each key's settled or folded events, "" if none has any."""
        latest: dict[ObjectKey, str] = {}
        for partition, some in self._known(keys):
            rows = {row.id: row for row in self._read(_NAMED, partition, {key.digest for key in some})}
            latest |= {key: key_state(rows[key.digest]).latest for key in some if key.digest in rows}
            seeded = self._seed(partition, [key for key in some if key not in latest])
            latest |= {key: fold.key.latest for key, fold in seeded.items()}
        return latest

    def kept_record(self, partition: int, seq: int) -> str | None:
        """Return the copied record of an event that has left the log, None if there is none."""
        row = self._connection.execute(
            sa.select(readable(_V.record)).where(
                _V.partition == partition, _V.seq == seq, _V.target_id == self._lease.target_id, _V.is_object
            )
        ).first()
        return row.record or None if row else None

    def _known(self, keys: Iterable[ObjectKey]) -> Iterator[tuple[int, list[ObjectKey]]]:
        by_partition = _by_partition(keys)
        self._close_gaps(by_partition)
        return iter(by_partition.items())

    def _seed(self, partition: int, keys: Sequence[ObjectKey]) -> dict[ObjectKey, Fold]:
        folds = self._folded_from_log(partition, keys)
        self._write(partition, folds)
        return folds

    def _folded_from_log(self, partition: int, keys: Sequence[ObjectKey]) -> dict[ObjectKey, Fold]:
        """Fold each key's whole history in the log; done once, when the key is first needed."""
        until = max(self._lease.positions[partition], self._until.get(partition, 0))
        folds = {(key.bucket, key.key): Fold() for key in keys}
        e = tables.events.c
        for some in chunks(sorted({key.key_hash for key in keys})):
            query = (
                sa.select(e.bucket, e.key, e.seq, e.name, e.version, e.sequencer, _HIDES_OLDER)
                .where(e.key_hash.in_(some), e.seq <= until, is_named(e.name, _CONTENT), is_for(self._lease.target_id))
                .order_by(e.seq)
            )
            for row in self._connection.execute(query):
                fold = folds.get((row.bucket, row.key))
                if fold is not None:
                    fold.add([Entry(row.seq, row.name, row.version, row.sequencer, bool(row.hides_older))])
        return {key: folds[key.bucket, key.key] for key in keys}

    def _read(self, query: sa.Select[Any], partition: int, ids: Iterable[str]) -> Iterator[Any]:
        for some in chunks(sorted(ids)):
            place = {"of_target": self._lease.target_id, "of_partition": partition, "ids": some}
            yield from self._connection.execute(query, place)

    @repeated_after_deadlock
    def _write(self, partition: int, folds: Mapping[ObjectKey, Fold]) -> None:
        rows = [row for key, fold in folds.items() for row in rows_of(self._lease.target_id, key, fold)]
        if not rows:
            return
        rows.sort(key=lambda row: str(row["id"]))
        with self._database.writing() as connection:
            fence(connection, self._lease, partition)
            for some in chunks(rows):
                connection.execute(UPSERT[self._database.dialect], some)
        self._filled.add(partition)

    def _read_partitions(self) -> None:
        c = tables.cursors.c
        filled = sa.exists().where(_V.target_id == c.target_id, _V.partition == c.partition).correlate(tables.cursors)
        query = sa.select(c.partition, (c.folded < c.position).label("gap"), filled.label("filled")).where(
            own_cursors(self._lease.target_id, self._lease.positions)
        )
        for row in self._connection.execute(query):
            if row.gap:
                self._gaps.add(row.partition)
            elif row.filled:
                self._filled.add(row.partition)

    def _close_gaps(self, partitions: Iterable[int]) -> None:
        """Delete the state of partitions with a gap, because the missed events may have left the log."""
        c = tables.cursors.c
        for partition in sorted(self._gaps.intersection(partitions)):
            dropped = RETENTION.batch_version_rows
            while dropped == RETENTION.batch_version_rows:
                with self._database.writing() as connection:
                    fence(connection, self._lease, partition)
                    dropped = drop(connection, self._lease.target_id, partition, RETENTION.batch_version_rows)
                    if dropped < RETENTION.batch_version_rows:
                        connection.execute(
                            tables.cursors.update()
                            .where(own_cursors(self._lease.target_id, [partition]))
                            .values(folded=c.position)
                        )
            self._gaps.discard(partition)


def drop(connection: sa.Connection, target_id: int, partition: int, max_rows: int) -> int:
    """Delete up to `max_rows` of a target's partition, and return their number."""
    here = (_V.target_id == target_id, _V.partition == partition)
    ids = connection.execute(sa.select(_V.id).where(*here).order_by(_V.id).limit(max_rows)).scalars().all()
    if ids:
        connection.execute(tables.object_versions.delete().where(*here, _V.id.in_(ids)))
    return len(ids)


def _by_partition(keys: Iterable[ObjectKey]) -> dict[int, list[ObjectKey]]:
    by_partition: dict[int, list[ObjectKey]] = {}
    for key in dict.fromkeys(keys):
        by_partition.setdefault(key.partition, []).append(key)
    return by_partition


def _fold_onto(rows: Mapping[str, Any], digest: str, entries: Sequence[Entry]) -> Fold:
    named = {version: rows.get(version_id(digest, version)) for version in map(version_of, entries)}
    versions = {version: version_state(row) for version, row in named.items() if row is not None}
    fold = Fold(key_state(rows[digest]), versions)
    fold.add(entries)
    return fold


def _holding(row: Any) -> Holding:
    if row.top is None:
        return key_state(row).holding(None)
    seq, is_object = divmod(row.top, 2)
    return key_state(row).holding(Layer(("", 0, seq), bool(is_object)))


def _tops() -> sa.Select[Any]:
    layer = tables.object_versions.alias()
    top = (
        sa.select(layer.c.placed * 2 + sa.case((layer.c.is_object, 1), else_=0))
        .where(layer.c.target_id == _V.target_id, layer.c.partition == _V.partition, layer.c.object == _V.object)
        .where(layer.c.sequencer.is_not(None))
        .order_by(layer.c.sequencer.desc(), layer.c.tie.desc(), layer.c.placed.desc())
        .limit(1)
        .correlate(tables.object_versions)
        .scalar_subquery()
    )
    return _NAMED.add_columns(top.label("top"))


_NAMED = sa.select(_V.id, _V.state, _V.trimmed).where(*_HERE, _V.id.in_(sa.bindparam("ids", expanding=True)))
_TOPS = _tops()


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
