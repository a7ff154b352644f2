"""A mirror ends equal to the bucket whichever frontend sends, in whatever order its events arrive."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

import orjson
import pytest

from app.events.model import Effect, Event
from app.events.parsing import parse
from app.outbox import tables
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from app.outbox.reconcile.log_queries import newest_sequencers
from spark_jobs.jobs.repair_events import repair_event
from tests.support.builders import add_target
from tests.support.frontend_buckets import RARE_SENDERS, SENDERS, Message, ModelBucket, Operation, Sender
from tests.support.properties import times
from tests.support.scripted_target import Courier, assert_counters_balance
from workers.delivery.namespace_policy import Policy

pytestmark = pytest.mark.promise
ROUNDS = times(2, 12)


def _cases(senders: Mapping[str, Sender]) -> list[Any]:
    return [
        pytest.param(name, versioned, id=f"{name}-{'versioned' if versioned else 'unversioned'}")
        for name, sender in senders.items()
        for versioned in (False, True)
        if sender.versioned or not versioned
    ]


CASES, RARE_CASES = _cases(SENDERS), _cases(RARE_SENDERS)
EVERY = SENDERS | RARE_SENDERS


class Row(NamedTuple):
    """A row of the target, as far as the events decide it."""

    version: str
    etag: str
    sequencer: str | None


def apply(rows: dict[str, Row], got: list[Event]) -> None:
    """What a namespace target does with the effects."""
    for one in got:
        thing = orjson.loads(one.record)["s3"]["object"]
        if one.effect is Effect.UPSERT:
            # As the reconciliation reads it, which takes a number for a text.
            sequencer = str(thing["sequencer"]) if "sequencer" in thing else None
            content = thing.get("eTag") or thing["versionId"]  # which are equal in the model
            rows[one.path] = Row(thing.get("versionId") or "", content, sequencer)
        elif one.effect is Effect.REMOVE or (one.path in rows and rows[one.path].version == one.version):
            rows.pop(one.path, None)


@dataclass
class Round:
    """What is drawn by chance for one bucket."""

    rng: Random
    bucket: ModelBucket
    bodies: list[Message]  # what its frontend has sent and was not recorded yet


@pytest.mark.parametrize("outbox_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(("name", "versioned"), RARE_CASES)
def test_a_mirror_of_a_rare_sender_ends_equal_too(name: str, versioned: bool, database: Database) -> None:
    test_a_mirror_ends_equal_to_the_bucket_whoever_sends(name, versioned, database)


# Not of an old SeaweedFS, which lists times in seconds: what the model lists would be newer than its deletions. Nor of
# Cloud Storage, whose listings have no generations, by which its events name what was deleted.
NOT_REPAIRED = ("seaweedfs", "gcs")


@pytest.mark.parametrize("outbox_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("name", "versioned"), [case for case in RARE_CASES if not str(case.id).startswith(NOT_REPAIRED)]
)
def test_a_repair_makes_no_later_event_of_a_rare_sender_look_old(
    name: str, versioned: bool, database: Database
) -> None:
    test_a_repair_makes_no_later_event_look_old(name, versioned, database)


@pytest.mark.nightly(
    "every sender on SQLite, and MinIO's on PostgreSQL: what a database is asked differs in values only",
    when=lambda outbox_url, name, versioned: (
        outbox_url != "sqlite" and (outbox_url, name, versioned) != ("postgresql", "minio", True)
    ),
)
@pytest.mark.parametrize(("name", "versioned"), CASES)
def test_a_mirror_ends_equal_to_the_bucket_whoever_sends(name: str, versioned: bool, database: Database) -> None:
    sender = EVERY[name]
    courier = mirror(database)
    rows: dict[str, Row] = {}
    rounds = []
    for number in range(ROUNDS):
        rng = Random(f"{name} {versioned} {number}")
        bucket = ModelBucket(
            f"bucket-{number}", rng, versioned, sender.tick, sender.renames and not versioned, sender.removes_markers,
            sender.uncovers,
        )  # fmt: skip
        bodies = [body for _ in range(60) for body in sender.messages(bucket.name, bucket.next())]
        if sender.shuffles:
            bodies += rng.sample(bodies, 10)  # sent again
            rng.shuffle(bodies)
        rounds.append(Round(rng, bucket, bodies))
    send(database, courier, rows, *(one.bodies for one in rounds))
    for one in rounds:
        assert held(rows, one.bucket) == one.bucket.contents(), one.bucket.name
    assert_counters_balance(database)


@pytest.mark.parametrize("outbox_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize(("name", "given"), [("minio", True), ("ceph", False)])
def test_a_mirror_ends_equal_to_both_buckets_of_one_name(
    name: str, given: bool, versioned: bool, database: Database
) -> None:
    """What two tenants send is equal as far as the shorter life goes, so that only the tenant tells them apart."""
    sender, courier, rows = SENDERS[name], mirror(database), dict[str, Row]()
    for number in range(times(1, 6)):
        buckets, sent = {}, list[tuple[str, Message]]()
        for tenant, operations in (("acme", 60), ("Acme", 45), ("", 30)):
            rng = Random(f"{name} {versioned} {number}")
            bucket = ModelBucket(f"b{number}", rng, versioned, sender.tick, removes_markers=sender.removes_markers)
            bodies = [body for _ in range(operations) for body in sender.messages(bucket.name, bucket.next())]
            if not given:
                for body in bodies:
                    body["Records"][0]["s3"]["bucket"]["arn"] = f"arn:aws:s3:default:{tenant}:{bucket.name}"
            bucket.name = f"{tenant}:{bucket.name}" if tenant else bucket.name
            buckets[bucket.name] = bucket
            sent += [(tenant if given else "arn", body) for body in bodies]
        Random(number).shuffle(sent)
        for start in range(0, len(sent), 20):
            events = [
                event
                for tenant, body in sent[start : start + 20]
                for event in parse(json.dumps(body).encode(), {}, now_ms=1, tenant=tenant).events
            ]
            Log(database).append([events])
            courier.run()
            apply(rows, courier.scripted.got)
            courier.scripted.got.clear()
        for bucket in buckets.values():
            assert held(rows, bucket) == bucket.contents(), bucket.name
        assert len({str(bucket.contents()) for bucket in buckets.values()}) == 3
    assert_counters_balance(database)


def mirror(database: Database) -> Courier:
    """A worker of a mirror, which takes what `send` records at once in as many turns as it has rounds."""
    return Courier(database, add_target(database), policy=Policy.MIRROR, batch=10 * ROUNDS)


def send(database: Database, courier: Courier, rows: dict[str, Row], *of_buckets: list[Message]) -> None:
    """Record the bodies a few of each bucket at a time, and deliver them."""
    for start in range(0, max(map(len, of_buckets)), 7):
        some = [body for bodies in of_buckets for body in bodies[start : start + 7]]
        events = [event for body in some for event in parse(json.dumps(body).encode(), {}, now_ms=1).events]
        Log(database).append([events])
        courier.run()
        apply(rows, courier.scripted.got)
        courier.scripted.got.clear()


def held(rows: dict[str, Row], bucket: ModelBucket) -> dict[str, str]:
    start = f"{bucket.name}/"
    return {path.removeprefix(start): row.etag for path, row in rows.items() if path.startswith(start)}


@pytest.mark.nightly(
    "every sender on SQLite, and MinIO's on all four, whose logs it asks what no other test asks",
    when=lambda outbox_url, name, versioned: outbox_url != "sqlite" and (name, versioned) != ("minio", True),
)
@pytest.mark.parametrize(("name", "versioned"), CASES)
def test_a_repair_makes_no_later_event_look_old(name: str, versioned: bool, database: Database) -> None:
    sender = EVERY[name]
    courier = mirror(database)
    rows: dict[str, Row] = {}
    rounds = []
    for number in range(ROUNDS):
        rng = Random(f"{name} {versioned} {number}")
        bucket = ModelBucket(
            f"bucket-{number}", rng, versioned, sender.tick, removes_markers=False, uncovers=sender.uncovers
        )
        bodies = [body for _ in range(40) for body in sender.messages(bucket.name, bucket.next())]
        arrived = [body for body in bodies if rng.random() < 0.6]  # the others are lost
        rounds.append(Round(rng, bucket, arrived))
    send(database, courier, rows, *(one.bodies for one in rounds))
    forgotten = [one.bucket.name for one in rounds[::3]]  # the log knows nothing of them any more
    with database.writing() as connection:
        connection.execute(tables.events.delete().where(tables.events.c.bucket.in_(forgotten)))
    for one in rounds:
        listed_at = one.bucket.wait(60) + one.rng.randrange(30_000)  # by a clock that is ahead of the frontend's
        found = findings(rows, one.bucket)
        newest = newest_sequencers(database, one.bucket.name, [each["key"] for each in found], mirror=courier.target)
        repairs = [
            repair_event(each, one.bucket.name, courier.target, newest.get(each["key"], ""), listed_at)
            for each in found
        ]
        one.bodies = [{"Records": [repair]} for repair in repairs]
    send(database, courier, rows, *(one.bodies for one in rounds))
    later = []
    for one in rounds:
        assert held(rows, one.bucket) == one.bucket.contents(), f"{one.bucket.name}: repaired"
        changed = [one.bucket.next() for _ in range(20)]
        one.bodies = [body for operation in changed for body in sender.messages(one.bucket.name, operation)]
        # What a removed version uncovers may be a version whose event was lost, or has left the log.
        uncovering = {operation.key for operation in changed if operation.kind == "delete version"}
        later.append({operation.key for operation in changed} - uncovering)
    send(database, courier, rows, *(one.bodies for one in rounds))
    for one, keys in zip(rounds, later, strict=True):
        after = {key: content for key, content in one.bucket.contents().items() if key in keys}
        now = {key: etag for key, etag in held(rows, one.bucket).items() if key in keys}
        assert now == after, f"{one.bucket.name}: after"


def findings(rows: dict[str, Row], bucket: ModelBucket) -> list[dict[str, Any]]:
    """What a reconciliation finds: the bucket's newest versions against the rows."""
    listing, present = bucket.listing(), held(rows, bucket)
    found = []
    for key in sorted(listing.keys() | present.keys()):
        top = listing.get(key)
        if (top.content if top else None) == present.get(key):
            continue
        row = rows.get(f"{bucket.name}/{key}")
        one: dict[str, Any] = {"key": key, "kind": "stale", "row_sequencer": row.sequencer if row else None}
        one |= {"etag": top.content, "size": 1, "modified": top.time // 10**6} if top else {"modified": None}
        found.append(one | {"version": top.version if top else None})
    return found


@pytest.mark.parametrize("outbox_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("name", ["minio", "ceph", "seaweedfs", "versity"])
def test_what_a_clock_that_was_set_back_hides_is_repaired(name: str, database: Database) -> None:
    """What is written until the clock has caught up looks older than what was written before."""
    target = add_target(database)
    courier = Courier(database, target, policy=Policy.MIRROR)
    rows: dict[str, Row] = {}
    messages = SENDERS[name].messages
    before = Operation("put", "k", 1795549401 * 10**9, 1, "a" * 32)
    hidden = Operation("put", "k", before.time - 600 * 10**9, 2, "b" * 32, old=(before.content, before.time))
    after = Operation("put", "k", before.time + 10**9, 3, "c" * 32, old=(hidden.content, hidden.time))
    send(database, courier, rows, [*messages("bucket", before), *messages("bucket", hidden)])
    assert rows["bucket/k"].etag == before.content
    finding = {"key": "k", "kind": "stale", "row_sequencer": rows["bucket/k"].sequencer, "version": None}
    finding |= {"etag": hidden.content, "size": 1, "modified": hidden.time // 10**6}
    newest = newest_sequencers(database, "bucket", ["k"], mirror=target)["k"]
    repair = repair_event(finding, "bucket", target, newest, hidden.time // 10**6 + 60_000)
    send(database, courier, rows, [{"Records": [repair]}])
    assert rows["bucket/k"].etag == hidden.content
    send(database, courier, rows, messages("bucket", after))
    assert rows["bucket/k"].etag == after.content
