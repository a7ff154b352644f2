"""Convert the states of versions and keys to rows of `object_versions`, as columns and JSON, and upsert the rows."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

from app.events.version_history import Fold, KeyState, Layer, Place, VersionState
from app.outbox import tables

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
