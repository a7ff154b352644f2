"""Maintain a mirror's state of versioned keys: fold each key's events once, and store the result by target and version.

Only the holder of a partition's lease folds, and it folds before it delivers: so every later holder knows the events
that were sent. The cost of a batch does not depend on the length of a key's history, and the state outlives the events.

The states of versions and keys are rows of `object_versions`, as columns and JSON.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from app.outbox.engine.locks import own_cursors, repeated_after_deadlock
from app.outbox.engine.many_rows import chunks
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
