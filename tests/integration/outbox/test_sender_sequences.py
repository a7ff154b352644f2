"""What real frontends sent for each operation, replayed: the mirror ends equal to what the bucket listed then.

What a sender's events do not tell is declared with the operation; the mirror then ends as declared, and a repair mends
it. SQLite is enough: what other databases are asked is the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest

from app.events.model import Effect
from app.events.parsing import BadEvents, parse
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from app.outbox.reconcile.log_queries import newest_sequencers
from spark_jobs.jobs.repair_events import repair_event
from tests.services.senders import SENDERS
from tests.support.builders import add_target, migrated
from tests.support.outboxes import in_file
from tests.support.properties import times
from tests.support.scripted_target import Courier, assert_counters_balance
from tests.support.sender_operations import CANNOT, LOSES, OPERATIONS, drift
from workers.delivery.namespace_policy import Policy

pytestmark = [pytest.mark.promise, pytest.mark.slow]
FOLDER = Path(__file__).parents[2] / "fixtures" / "frontends" / "sequences"
CAPTURED = {
    (file.stem, one["operation"]): one
    for file in sorted(FOLDER.glob("*.jsonl"))
    for line in file.read_bytes().splitlines()
    for one in [json.loads(line)]
}
NUMBERS = count()  # of the buckets
CASES = pytest.mark.parametrize(("name", "operation"), [pytest.param(*case, id="-".join(case)) for case in CAPTURED])
SHUFFLED = ("shuffled", "in another way", "in a third way")
# An object from before its bucket had versions is known if its event was recorded before that of its first version.
IN_ORDER = "null_versions"
# This release tells to the second when a version was written, and not when something was renamed or got other metadata:
# what arrives last is what counts.
BY_ARRIVAL = {
    ("seaweedfs-4.15", operation)
    for operation in ("copy_onto_itself", "multipart_versions", "versions", "markers", "rename", "rename_versions")
}
KEYLESS = '"key":""'
Rows = dict[str, dict[str, Any]]


class Mirrored:
    """A target of a bucket's events, and the members `s3.object` that its rows hold, by bucket and key."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.target = add_target(database)
        self.courier = Courier(database, self.target, policy=Policy.MIRROR)
        self.rows: Rows = {}

    def send(self, bodies: Iterable[str]) -> None:
        """Record the bodies and deliver them, but for those without a key, which are refused."""
        events = []
        for body in bodies:
            if KEYLESS in body:
                with pytest.raises(BadEvents, match=r's3\.object\.key is ""'):
                    parse(body.encode(), {}, now_ms=1)
            else:
                events += parse(body.encode(), {}, now_ms=1).events
        Log(self.database).append([events])
        self.courier.run()
        for one in self.courier.scripted.got:
            if one.effect is Effect.UPSERT:
                self.rows[one.path] = orjson.loads(one.record)["s3"]["object"]
            elif one.effect is Effect.REMOVE or self.rows.get(one.path, {}).get("versionId") == one.version:
                self.rows.pop(one.path, None)
        self.courier.scripted.got.clear()

    def held(self, bucket: str) -> Rows:
        start = f"{bucket}/"
        return {path.removeprefix(start): row for path, row in self.rows.items() if path.startswith(start)}

    def drift(self, bucket: str, listing: Rows) -> dict[str, str]:
        rows = {key: (row.get("eTag", ""), row.get("size", 0)) for key, row in self.held(bucket).items()}
        return drift(rows, {key: (one["etag"], one["size"]) for key, one in listing.items()})

    def repair(self, buckets: Iterable[str], listing: Rows, listed_at: int) -> None:
        """What `bucketwire reconcile run --repair` posts for each of these buckets, which have the same listing."""
        repairs = []
        for bucket in buckets:
            drifted = list(self.drift(bucket, listing))
            newest = newest_sequencers(self.database, bucket, drifted, mirror=self.target)
            for key in drifted:
                row, thing = self.held(bucket).get(key), listing.get(key)
                finding = {"key": key, "kind": "stale", "row_sequencer": row.get("sequencer") if row else None}
                finding |= {"modified": None, "version": None} if thing is None else thing
                repairs.append(repair_event(finding, bucket, self.target, newest.get(key, ""), listed_at))
        self.send(json.dumps({"Records": [one]}) for one in repairs)


@pytest.fixture(scope="module")
def mirrored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mirrored]:
    """One mirror for all tests, each of which has buckets of its own: an outbox takes longer to make than they do."""
    with closing(migrated(in_file(tmp_path_factory.mktemp("outbox") / "outbox.db"), partitions=4)) as database:
        yield Mirrored(database)


def in_order(bodies: list[str], order: str) -> list[str]:
    """The bodies in some order in which they may arrive; some of them come again."""
    rng = Random(order)
    match order:
        case "as they came":
            return bodies
        case "backwards":
            return bodies[::-1]
    return rng.sample([*bodies, *rng.sample(bodies, min(3, len(bodies)))], min(3, len(bodies)) + len(bodies))


def renamed(bodies: Iterable[str], bucket: str, to: str) -> list[str]:
    """The bodies as another bucket's."""
    return [body.replace(bucket, to) for body in bodies]


def declared(name: str, operation: str) -> Mapping[str, str]:
    loss = LOSES.get((name, operation)) or LOSES.get((name.partition("-")[0], operation))
    return loss.drift if loss else {}


def test_every_operation_of_every_sender_was_captured() -> None:
    possible = {(name, one.__name__) for name in SENDERS for one in OPERATIONS} - CANNOT.keys()
    assert {case for case in CAPTURED if case[0] in SENDERS} == possible
    assert {(name.partition("-")[0], operation) for name, operation in CAPTURED} == possible  # of other releases, some


@CASES
def test_a_mirror_ends_equal_to_the_listing(name: str, operation: str, mirrored: Mirrored) -> None:
    one = CAPTURED[name, operation]
    orders = ["as they came"]
    if operation != IN_ORDER and (name, operation) not in BY_ARRIVAL:
        orders += ["backwards", *SHUFFLED[: times(1, len(SHUFFLED))]]
    lives = {}  # each order has a bucket of its own, so that all are sent at once
    for order in orders:
        bucket = f"{one['bucket']}-{next(NUMBERS)}"
        lives[bucket] = in_order(renamed(one["bodies"], one["bucket"], bucket), order)
    for start in range(0, max(map(len, lives.values())), 3):
        mirrored.send(body for bodies in lives.values() for body in bodies[start : start + 3])
    ends = {order: mirrored.drift(bucket, one["listing"]) for bucket, order in zip(lives, orders, strict=True)}
    assert ends == dict.fromkeys(orders, declared(name, operation))
    assert_counters_balance(mirrored.database)


@CASES
def test_a_repair_mends_it_and_the_next_puts_are_newer(name: str, operation: str, mirrored: Mirrored) -> None:
    """Also where half of the events are lost: that is another bucket's life."""
    one = CAPTURED[name, operation]
    whole, halved = (f"{one['bucket']}-{next(NUMBERS)}" for _ in range(2))
    mirrored.send(renamed(one["bodies"], one["bucket"], whole) + renamed(one["bodies"][::2], one["bucket"], halved))
    mirrored.repair((whole, halved), one["listing"], one["listed_at"])
    assert [mirrored.drift(bucket, one["listing"]) for bucket in (whole, halved)] == [{}, {}]
    mirrored.send(body for bucket in (whole, halved) for body in renamed(one["again"]["bodies"], one["bucket"], bucket))
    assert [mirrored.drift(bucket, one["again"]["listing"]) for bucket in (whole, halved)] == [{}, {}]
