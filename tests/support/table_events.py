"""Events for the Iceberg tables, what the mirror's rules make of them, and what the tables hold."""

import hashlib
import random
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote_plus

import orjson
import pytest
from pyspark.sql import SparkSession

from app.events.model import Event
from app.events.names import NULL, is_concrete
from app.events.order import Entry, Fold
from spark_jobs.iceberg import Warehouse
from spark_jobs.jobs.tables import Tables
from tests.support.builders import DELETE, PUT

MARKER, ALL, TAG = "s3:ObjectRemoved:DeleteMarkerCreated", "s3:ObjectRemoved:DeleteAllVersions", "s3:ObjectTagging:Put"
GET, TRANSITION = "s3:ObjectAccessed:Get", "s3:ObjectTransition:Complete"
HEAVY = (pytest.mark.heavy, pytest.mark.timeout(7200))

HOUR, WEEK, T = 3_600_000, 7 * 86_400_000, 1_795_221_236_082


def opened(session: SparkSession, warehouse: Warehouse) -> Tables:
    warehouse.open(session)
    return Tables(session)


def journal_ids(tables: Tables) -> list[str]:
    return [row["event_id"] for row in tables.journal.frame().orderBy("log_position").collect()]


def inventory(tables: Tables, *columns: str) -> list[tuple[Any, ...]]:
    rows = tables.inventory.frame().select("bucket", "key", "version_id", *columns).collect()
    return sorted((tuple(row) for row in rows), key=repr)


def made(
    key: str, name: str = PUT, version: str = "", sequencer: str = "", number: int = 0, *, e_tag: str = "",
    size: int | None = None, at: int | None = None,
) -> Event:  # fmt: skip
    """An event with everything that the journal has a column for, unlike one with another number."""
    size, at = number if size is None else size, T + number if at is None else at
    thing: dict[str, Any] = {
        "key": quote_plus(key),
        "eTag": e_tag or f"e{number}",
        "size": size,
        "sequencer": sequencer,
    }
    record = {
        "eventName": name, "eventSource": "minio:s3", "userIdentity": {"principalId": "ann"},
        "requestParameters": {"sourceIPAddress": "10.0.0.1"}, "responseElements": {"x-amz-request-id": f"r{number}"},
        "s3": {"bucket": {"name": "b"}, "object": thing | ({"versionId": version} if version else {})},
    }  # fmt: skip
    text = orjson.dumps(record).decode()
    digest = hashlib.blake2b(f"{number} {text}".encode(), digest_size=16).hexdigest()
    return Event(digest, name, "b", key, version, sequencer, at, text)


def histories(keys: int, events: int) -> list[Event]:
    """Random events of some keys, in an order that mixes them."""
    rng = random.Random(7)
    names = [PUT, "s3:ObjectCreated:CompleteMultipartUpload", MARKER, MARKER, DELETE, ALL, GET, TAG]
    names += ["s3:ObjectLifecycle:Expiration:Current", "s3:ObjectLifecycle:Expiration:DeleteMarker"]
    weights = [8, 2, 3, 3, 6, 1, 1, 1, 1, 1]
    versions = ["", "", "null", "v1", "v2", "v3"]
    sequencers = ["", "not hex", "a0", *(f"{n:X}" for n in range(0xA1, 0xA9))]
    return [
        made(
            f"k{rng.randrange(keys)}", rng.choices(names, weights)[0], rng.choice(versions), rng.choice(sequencers), n
        )
        for n in range(events)
    ]  # fmt: skip


def folded(events: Sequence[Event]) -> dict[tuple[str, str | None], tuple[bool, bool, int]]:
    """By key and version what the mirror's rules say is there: whether it is a marker, the latest, and its event."""
    by_key: dict[str, list[Entry]] = {}
    for seq, one in enumerate(events, 1):
        by_key.setdefault(one.key, []).append(Entry(seq, one.name, one.version, one.sequencer))
    present = {}
    for key, entries in by_key.items():
        fold = Fold()
        fold.add(entries)
        layers = {version: state.layer(version) for version, state in fold.versions.items()}
        cover, top = fold.key.cover, fold.top()
        for version, layer in layers.items():
            if layer is not None and (cover is None or layer.place > cover):
                name = version if is_concrete(version) else None
                assert is_concrete(version) or version == NULL
                present[key, name] = (not layer.is_object, layer == top, layer.place[2])
    return present
