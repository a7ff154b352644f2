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
from dataclasses import dataclass, replace
from itertools import product
from types import MappingProxyType
from uuid import uuid4

import botocore.exceptions  # type: ignore[import-untyped]  # ships no types
import psycopg2
import pytest

from tests import provision, services
from tests.services import senders
from tests.services.senders import SENDERS
from tests.services.server_process import until
from tests.spark.conftest import QUICKLY
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

    def held(self, bucket: str) -> list[dict[str, tuple[str, int]]]:
        """The rows of a bucket in PostgreSQL and in Redis, by key."""
        stored: dict[str, Record] = {}
        with contextlib.suppress(psycopg2.errors.UndefinedTable):  # it is created for the first event
            stored = rows(self.postgres, self.database, "rows")
        return [contents(held, bucket) for held in (stored, hashed(self.redis, "rows"))]

    def drifts(self, bucket: str) -> list[dict[str, str]]:
        """How the rows of PostgreSQL and Redis differ from the bucket's listing."""
        listing = {key: (one["ETag"].strip('"'), one["Size"]) for key, one in self.listed(bucket).items()}
        return [drift(held, listing) for held in self.held(bucket)]

    def token(self, name: str, tenant: str) -> str:
        """Make a token for a tenant's events."""
        made = {"name": name, "scopes": ["ingest"], "tenant": tenant}
        return str(self.whole.ask("POST", "/v1/tokens", json=made).json()["token"])

    def end(self, bucket: str, expected: Mapping[str, tuple[str, int]]) -> None:
        """Both mirrors end with just these rows of the bucket."""
        with contextlib.suppress(AssertionError):  # compared once more below, where the difference is shown
            until(lambda: self.held(bucket) == [expected, expected], LATEST[self.sender.name])
        assert self.held(bucket) == [expected, expected]

    def check(self, bucket: str, expected: Mapping[str, str]) -> None:
        """Both mirrors end with just this drift, and stay so."""
        with contextlib.suppress(AssertionError):  # compared once more below, where the difference is shown
            until(lambda: self.drifts(bucket) == [expected, expected], LATEST[self.sender.name])
        self.wait()
        assert self.drifts(bucket) == [expected, expected]

    def reconcile(self, bucket: str, *options: str, login: senders.Login = senders.LOGIN, status: int = 0) -> None:
        """Compare the bucket with each mirror, as an operator does; no drift is left, unless the exit status is 3."""
        services.need("spark_jars")
        access = {
            "AWS_ACCESS_KEY_ID": login.access_key,
            "AWS_SECRET_ACCESS_KEY": login.secret_key,
            "AWS_ENDPOINT_URL_S3": self.sender.url,
            "BUCKETWIRE_SPARK_JARS": str(provision.SPARK_JARS),
            "BUCKETWIRE_SPARK_MASTER": "local[2]",
            "BUCKETWIRE_TOKEN": ADMIN_TOKEN,
        }
        for target in ("postgresql:rows", "redis:rows"):
            words = [bucket, "--target", target, "--grace", "0s", "--check", "--url", self.whole.api.url, *options]
            done = subprocess.run(
                [BUCKETWIRE, "reconcile", "run", *words],
                env=os.environ | dict(self.whole.settings) | access | QUICKLY,
                capture_output=True,
                text=True,
                timeout=800,
                check=False,
            )
            assert done.returncode == status, f"{target}: {done.stdout}{done.stderr}"


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
        yield Stage(sender, s3, MANY, whole.settle, *parts)


ONLY_CEPH, ONLY_SEAWEEDFS = (pytest.mark.parametrize("stage", [name], indirect=True) for name in ("ceph", "seaweedfs"))


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_the_mirrors_end_equal_to_the_listing(stage: Stage, operation: Operation) -> None:
    if reason := stage.cannot(operation):
        pytest.skip(reason)
    bucket = operation(stage)
    loss = LOSES.get((stage.sender.name, operation.__name__))
    stage.check(bucket, loss.drift if loss else {})
    if loss:
        assert_repaired(stage, bucket, loss.left)
    elif operation in RECONCILED:
        stage.reconcile(bucket)


def assert_repaired(stage: Stage, bucket: str, left: Mapping[str, str] = MappingProxyType({})) -> None:
    """A reconciliation mends both mirrors but for what is left, and what happens next is newer."""
    stage.reconcile(bucket, "--repair", "--max-removals", "100", status=3 if left else 0)
    stage.check(bucket, left)
    again(stage, bucket)
    stage.check(bucket, left)


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


@ONLY_CEPH
def test_buckets_of_one_name_in_two_of_cephs_tenants_are_one_unless_the_token_says_whose_they_are(stage: Stage) -> None:
    ceph = stage.sender
    assert isinstance(ceph, services.Ceph)
    tenants = {name: ceph.tenant(name) for name in ("east", "west")}
    made = {name: stage.token(name, name) for name in ("arn", *tenants)}
    bucket, etags = f"b-{uuid4().hex[:12]}", {}
    tokens = {
        "plain": dict.fromkeys(tenants, SENDER_TOKEN),
        "by-arn": dict.fromkeys(tenants, made["arn"]),
        "by-token": made,
    }
    for (way, chosen), (tenant, login) in product(tokens.items(), tenants.items()):
        client = ceph.boto3(login=login)
        client.create_bucket(Bucket=f"{bucket}-{way}")
        ceph.notify(f"{bucket}-{way}", ceph.topic(way, ceph.endpoint_with(chosen[tenant]), login), login)
        for key in ("both", tenant):
            etags[tenant] = client.put_object(Bucket=f"{bucket}-{way}", Key=key, Body=tenant.encode())["ETag"].strip(
                '"'
            )
        client.close()
    rows = {name: (etags[name], 4) for name in tenants}
    both = {name: {"both": rows[name], name: rows[name]} for name in tenants}
    stage.end(f"{bucket}-plain", rows | {"both": rows["west"]})
    for way, tenant in product(("by-arn", "by-token"), tenants):
        stage.end(f"{tenant}:{bucket}-{way}", both[tenant])
    client = ceph.boto3(login=tenants["east"])
    for way in tokens:
        client.delete_object(Bucket=f"{bucket}-{way}", Key="both")
    client.close()
    stage.end(f"{bucket}-plain", rows)  # the row of what is still in the other tenant's bucket is gone
    for way in ("by-arn", "by-token"):
        stage.end(f"east:{bucket}-{way}", {"east": rows["east"]})
        stage.end(f"west:{bucket}-{way}", both["west"])
        stage.end(f"{bucket}-{way}", {})
    stage.reconcile(f"west:{bucket}-by-arn", login=ceph.overseer())


@ONLY_CEPH
def test_what_ceph_purges_with_its_bucket_is_found_by_a_reconciliation(stage: Stage) -> None:
    bucket = stage.bucket()
    for key in ("a", "b+ %2F"):
        stage.put(bucket, key)
    stage.check(bucket, {})
    assert isinstance(stage.sender, services.Ceph)
    kept = stage.held(bucket)
    stage.sender.administer("bucket", "rm", f"--bucket={bucket}", "--purge-objects")
    stage.wait()
    assert stage.held(bucket) == kept
    stage.reconcile(bucket, "--repair", "--max-removals", "100")
    stage.end(bucket, {})


@ONLY_SEAWEEDFS
@pytest.mark.parametrize("way", ["shell", "filer"])
def test_a_bucket_that_is_deleted_with_its_objects_leaves_no_row(stage: Stage, way: str) -> None:
    bucket = filled(stage)
    if way == "filer":
        stage.file("DELETE", bucket, "", recursive="true")
    else:
        weed(stage).shell(f"s3.bucket.delete -name {bucket}")
    stage.end(bucket, {})


@ONLY_SEAWEEDFS
def test_what_the_store_of_a_filer_drops_with_its_bucket_is_found_by_a_reconciliation(stage: Stage) -> None:
    own = weed(stage)
    with services.SeaweedFS(own.endpoint, own.token, "leveldb3").start() as sender:
        with contextlib.closing(sender.boto3()) as s3:
            bucket = filled(at := replace(stage, sender=sender, s3=s3))
        kept = at.held(bucket)
        sender.shell(f"s3.bucket.delete -name {bucket}")
        at.wait()
        assert at.held(bucket) == kept
        at.reconcile(bucket, "--repair", "--max-removals", "100")
        at.end(bucket, {})


@ONLY_SEAWEEDFS
def test_objects_whose_collection_was_dropped_are_listed_until_their_entries_are_removed(stage: Stage) -> None:
    bucket = filled(stage)
    weed(stage).shell(f"collection.delete -collection {bucket} -apply")
    with pytest.raises(botocore.exceptions.ClientError, match="InternalError"):
        stage.s3.get_object(Bucket=bucket, Key="a")
    assert sorted(stage.listed(bucket)) == ["a", "b/c d"]
    stage.check(bucket, {})
    weed(stage).shell("volume.fsck -findMissingChunksInFiler -reallyDeleteFilerEntries -cutoffTimeAgo 0s")
    stage.end(bucket, {})


def filled(stage: Stage) -> str:
    """Make a bucket with two objects, which the mirrors have."""
    bucket = stage.bucket()
    for key in ("a", "b/c d"):
        stage.put(bucket, key)
    stage.check(bucket, {})
    return bucket


def weed(stage: Stage) -> services.SeaweedFS:
    """The sender, which is a SeaweedFS."""
    assert isinstance(stage.sender, services.SeaweedFS)
    return stage.sender


@ONLY_CEPH
def test_ceph_refuses_what_its_page_says(stage: Stage) -> None:
    ceph, bucket = stage.sender, stage.bucket()
    assert isinstance(ceph, services.Ceph)
    topic = {"Id": "expired", "TopicArn": ceph.topic("expired", ceph.endpoint_with_token)}
    topic |= {"Events": ["s3:ObjectLifecycle:Expiration:Current"]}
    with pytest.raises(botocore.exceptions.ClientError, match="InvalidArgument"):
        stage.s3.put_bucket_notification_configuration(
            Bucket=bucket, NotificationConfiguration={"TopicConfigurations": [topic]}
        )
    with contextlib.closing(ceph.boto3("sns")) as sns, pytest.raises(botocore.exceptions.ClientError):
        sns.create_topic(Name="plain", Attributes={"push-endpoint": ceph.endpoint_with_token})  # not over HTTPS
    stage.put(bucket, "k")
    with pytest.raises(botocore.exceptions.BotoCoreError):  # no answer: the gateway has aborted
        stage.s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "k"}]})
    ceph.restart()
    stage.check(bucket, {})
