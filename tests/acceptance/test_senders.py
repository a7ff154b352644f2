"""The sender contract: whatever a real frontend does with its objects, the mirrors end equal to its listing.

What a sender's events do not tell is declared with the operation: the mirrors then end as declared, and a
reconciliation repairs them. `make test-all` runs it. `BULK` sets the number of objects of the bulk test.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from uuid import uuid4

import psycopg2
import pytest

from tests import provision, services
from tests.services import senders
from tests.services.senders import SENDERS
from tests.services.server_process import until
from tests.support.sender_operations import (
    LOSES,
    OPERATIONS,
    Buckets,
    Operation,
    again,
    append,
    below_a_key,
    copy,
    drift,
    hostile_keys,
    overwrite,
    rename,
    versions,
)
from tests.support.service_processes import BUCKETWIRE, System, system
from tests.support.target_readers import Record, hashed, rows

pytestmark = [pytest.mark.sender, pytest.mark.timeout(1800)]

BULK = int(os.environ.get("BULK", "500"))
MANY = 50
SENDER_TOKEN, ADMIN_TOKEN = "sender-0123456789abcdef", "admin-0123456789abcdef"
QUIET = 40  # looks at the counters, 0.2 s apart at most, without a new event: then no more is expected
# Seconds until what was done has arrived. SeaweedFS waits up to 300 s between two attempts; Ceph looks for new queues
# every 30 s, and takes over those of a gateway that has ended after 90 s.
LATEST = {"seaweedfs": 330.0, "versity": 20.0, "ceph": 180.0}
RECONCILED = (hostile_keys, overwrite, copy, below_a_key, versions, rename, append)


@dataclass
class Stage(Buckets):
    """A sender, the service, and its two mirrors."""

    whole: System
    redis: services.Redis
    postgres: services.Postgres
    database: str

    def drifts(self, bucket: str) -> list[dict[str, str]]:
        """How the rows of PostgreSQL and Redis differ from the bucket's listing."""
        listing = {key: (one["ETag"].strip('"'), one["Size"]) for key, one in self.listed(bucket).items()}
        stored: dict[str, Record] = {}
        with contextlib.suppress(psycopg2.errors.UndefinedTable):  # it is created for the first event
            stored = rows(self.postgres, self.database, "rows")
        return [drift(contents(held, bucket), listing) for held in (stored, hashed(self.redis, "rows"))]

    def check(self, bucket: str, expected: Mapping[str, str]) -> None:
        """Both mirrors end with just this drift, and stay so."""
        with contextlib.suppress(AssertionError):  # compared once more below, where the difference is shown
            until(lambda: self.drifts(bucket) == [expected, expected], LATEST[self.sender.name])
        self.wait()
        assert self.drifts(bucket) == [expected, expected]

    def reconcile(self, bucket: str, *options: str) -> None:
        """Compare the bucket with each mirror, as an operator does; no drift is left."""
        services.need("spark_jars")
        access = {
            "AWS_ACCESS_KEY_ID": senders.ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": senders.SECRET_KEY,
            "AWS_ENDPOINT_URL_S3": self.sender.url,
            "BUCKETWIRE_SPARK_JARS": str(provision.SPARK_JARS),
            "BUCKETWIRE_SPARK_MASTER": "local[2]",
            "BUCKETWIRE_TOKEN": ADMIN_TOKEN,
        }
        for target in ("postgresql:rows", "redis:rows"):
            words = [bucket, "--target", target, "--grace", "0s", "--check", "--url", self.whole.api.url, *options]
            done = subprocess.run(
                [BUCKETWIRE, "reconcile", "run", *words],
                env=os.environ | dict(self.whole.settings) | access,
                capture_output=True,
                text=True,
                timeout=800,
                check=False,
            )
            assert done.returncode == 0, f"{target}: {done.stdout}{done.stderr}"


def settle(whole: System) -> None:
    """Return when no event has come for a while and all are delivered."""
    last, unchanged = -1, 0

    def quiet() -> bool:
        nonlocal last, unchanged
        recorded = whole.counters()["redis:rows"].recorded
        last, unchanged = recorded, unchanged + 1 if recorded == last else 0
        return unchanged >= QUIET

    until(quiet, 300, what="no more events")
    until(whole.settled, 120, what="everything delivered")


def contents(held: Mapping[str, Record], bucket: str) -> dict[str, tuple[str, int]]:
    """The ETags and sizes of a bucket's rows, by key."""
    start = f"{bucket}/"
    things = {path.removeprefix(start): row["s3"]["object"] for path, row in held.items() if path.startswith(start)}
    return {key: (one.get("eTag", ""), one.get("size", 0)) for key, one in things.items()}


@pytest.fixture(scope="module", params=list(SENDERS))
def stage(request: pytest.FixtureRequest, postgres_server: services.Postgres) -> Iterator[Stage]:
    services.need(request.param)
    outbox, database = (f"{name}_{uuid4().hex[:12]}" for name in ("outbox", "target"))
    postgres_server.create_database(database)
    with ExitStack() as stack:
        broker, redis = (stack.enter_context(services.redis()) for _ in range(2))
        tokens = f"sender:ingest:{SENDER_TOKEN},tests:admin:{ADMIN_TOKEN}"
        whole = stack.enter_context(
            system(postgres_server.create_database(outbox), broker.url, token=ADMIN_TOKEN, api_tokens=tokens)
        )
        dsn = postgres_server.dsn(database)
        whole.add_target("redis:rows", address=f"{services.LOOPBACK}:{redis.port}", key="rows", policy="mirror")
        whole.add_target("postgresql:rows", connection_string=dsn, table="rows", policy="mirror")
        sender = stack.enter_context(SENDERS[request.param](f"{whole.api.url}/v1/events", SENDER_TOKEN).start())
        s3 = sender.boto3()
        stack.callback(s3.close)
        parts = (whole, redis, postgres_server, database)
        yield Stage(sender, s3, MANY, lambda: settle(whole), *parts)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_the_mirrors_end_equal_to_the_listing(stage: Stage, operation: Operation) -> None:
    if reason := stage.cannot(operation):
        pytest.skip(reason)
    bucket = operation(stage)
    loss = LOSES.get((stage.sender.name, operation.__name__))
    stage.check(bucket, loss.drift if loss else {})
    if loss:
        assert_repaired(stage, bucket)
    elif operation in RECONCILED:
        stage.reconcile(bucket)


def assert_repaired(stage: Stage, bucket: str) -> None:
    """A reconciliation mends both mirrors, and what happens next is newer."""
    stage.reconcile(bucket, "--repair", "--max-removals", "100")
    stage.check(bucket, {})
    again(stage, bucket)
    stage.check(bucket, {})


def test_the_mirrors_equal_a_bucket_of_many_objects(stage: Stage) -> None:
    bucket = stage.bucket()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: stage.put(bucket, f"{number % 7}/k{number}", str(number)), range(BULK)))
    stage.check(bucket, {})


def test_what_happens_while_the_receiver_is_away_for_a_minute_is_not_lost(stage: Stage) -> None:
    """But for Versity, which posts an event once: what it lost is found, and repaired."""
    bucket = stage.bucket()
    stage.put(bucket, "before")
    stage.check(bucket, {})
    stage.whole.api.stop()
    keys = [f"k{number}" for number in range(20)]
    try:
        for key in keys:
            stage.put(bucket, key, "while away")
        stage.delete(bucket, "before")
        with pytest.raises(AssertionError):
            until(lambda: False, 60)
    finally:
        stage.whole.api.start()
    if isinstance(stage.sender, services.Ceph):
        stage.sender.restart()  # as its page says: else it may post nothing more
    if isinstance(stage.sender, services.Versity):
        stage.check(bucket, dict.fromkeys(keys, "missing") | {"before": "orphaned"})
        assert_repaired(stage, bucket)
    else:
        stage.check(bucket, {})
