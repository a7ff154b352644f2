"""A mirror ends equal to the bucket whichever frontend sends, in whatever order its events arrive."""

from __future__ import annotations

import json
from random import Random

import orjson
import pytest

from app.events.model import Effect, Event
from app.events.parsing import parse
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from tests.support.builders import add_target
from tests.support.frontend_buckets import SENDERS, ModelBucket
from tests.support.scripted_target import Courier, assert_counters_balance
from workers.delivery.namespace_policy import Policy

pytestmark = pytest.mark.promise
ROUNDS = 12


def apply(rows: dict[str, tuple[str, str]], got: list[Event]) -> None:
    """What a namespace target does with the effects; a row is a version and an ETag."""
    for one in got:
        thing = orjson.loads(one.record)["s3"]["object"]
        if one.effect is Effect.UPSERT:
            rows[one.path] = thing.get("versionId") or "", thing["eTag"]
        elif one.effect is Effect.REMOVE or rows.get(one.path, ("", ""))[0] == one.version:
            rows.pop(one.path, None)


@pytest.mark.parametrize("versioned", [False, True], ids=["unversioned", "versioned"])
@pytest.mark.parametrize("name", SENDERS)
def test_a_mirror_ends_equal_to_the_bucket_whoever_sends(name: str, versioned: bool, database: Database) -> None:
    sender = SENDERS[name]
    if versioned and not sender.versioned:
        pytest.skip(f"{name} reports no versions")
    courier = Courier(database, add_target(database), policy=Policy.MIRROR)
    rows: dict[str, tuple[str, str]] = {}
    for number in range(ROUNDS):
        rng = Random(f"{name} {versioned} {number}")
        bucket = ModelBucket(
            f"bucket-{number}", rng, versioned, sender.tick, sender.renames and not versioned, sender.removes_markers
        )
        bodies = [body for _ in range(60) for body in sender.messages(bucket.name, bucket.next())]
        if sender.shuffles:
            bodies += rng.sample(bodies, 10)  # sent again
            rng.shuffle(bodies)
        while bodies:
            some, bodies = bodies[:7], bodies[7:]
            events = [event for body in some for event in parse(json.dumps(body).encode(), {}, now_ms=1).events]
            Log(database).append([events])
            courier.run()
            apply(rows, courier.scripted.got)
            courier.scripted.got.clear()
        expected = {f"{bucket.name}/{key}": content for key, content in bucket.contents().items()}
        held = {path: etag for path, (_, etag) in rows.items() if path.startswith(f"{bucket.name}/")}
        assert held == expected, f"round {number}"
    assert_counters_balance(database)
