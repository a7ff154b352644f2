"""Real stores whose buckets are watched: what they do without reporting it, every target has in the end, and once.

`make nightly` runs these with MinIO, `make test-all` with the stores that it has compiled.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import orjson
import psycopg2.errors
import pytest

from tests import services
from tests.contract.probes.kafka import Log
from tests.services import senders, until
from tests.services.server_process import looks
from tests.support.sender_operations import OPERATIONS, Buckets, drift, expire, versions
from tests.support.service_processes import Role, System, source_worker, system
from tests.support.target_readers import Record, hashed, path, rows

pytestmark = [pytest.mark.promise, pytest.mark.timeout(1800)]

TOKEN = "admin-0123456789abcdef"
MANY = 8
ENTRIES = 1_080  # of a listing, which has 1,000 on a page
LATEST = 120  # seconds until what was found is at each target
NIGHTLY = pytest.mark.nightly("a MinIO that notifies nobody, in test_bucket_source.py and test_watched_bucket.py")
STORES = [
    pytest.param("minio", marks=NIGHTLY),
    *(pytest.param(name, marks=pytest.mark.sender) for name in ("garage", *senders.SENDERS)),
]
EXPIRE_ALL = """expire:
  apiVersion: v1
  bucket: {bucket}
  prefix: batch/
  rules:
    - type: object
      purge: {{retainVersions: 0}}
"""

Content = tuple[str, int] | None  # ETag and size; None for a delete marker


def start(name: str, endpoint: str) -> Any:
    """A store of this name, which posts its events to the endpoint if it sends any."""
    if name == "minio":
        return services.minio(webhooks={"BW": (endpoint, TOKEN)})
    services.need(name)
    return services.Garage().start() if name == "garage" else senders.SENDERS[name](endpoint, TOKEN).start()


@dataclass
class Stage(Buckets):
    """A store whose buckets are all watched, the service, its mirrors, and a topic with all that is recorded."""

    whole: System
    worker: Role
    redis: services.Redis
    postgres: services.Postgres
    database: str
    topic: Log
    grace: str
    others: Mapping[str, str]
    watched: list[str] = field(default_factory=list)

    def bucket(self, *, versioned: bool = False) -> str:
        """Make a bucket that is watched."""
        bucket = super().bucket(versioned=versioned)
        settings = {
            "endpoint": self.sender.url, "bucket": bucket, "access_key": self.sender.access_key,
            "secret_key": self.sender.secret_key, "grace": self.grace, "initial": "events", "max_removals": "100",
        }  # fmt: skip
        self.whole.ask("PUT", _source(bucket), json=settings | self.others)
        self.watched.append(bucket)
        return bucket

    def shown(self, bucket: str) -> dict[str, Any]:
        """The source that lists a bucket, as the API shows it."""
        shown: dict[str, Any] = self.whole.ask("GET", _source(bucket)).json()
        return shown

    def resume(self, bucket: str) -> None:
        """List a bucket at once, also if too much of it is gone."""
        self.whole.ask("POST", f"{_source(bucket)}/resume", json={})

    def list_again(self, buckets: Sequence[str]) -> None:
        """List buckets, and again until nothing of them waits for the end of the grace."""
        before = {bucket: _listings(self.shown(bucket)) for bucket in buckets}
        for bucket in buckets:
            self.resume(bucket)
        for bucket in buckets:
            seen = before[bucket]
            for _ in looks():
                shown = self.shown(bucket)
                is_listed, seen = _listings(shown) > seen, _listings(shown)
                if is_listed and not shown["listing"]["pending"]:
                    break
                if is_listed or shown["state"] == "paused":
                    self.resume(bucket)

    @contextmanager
    def listed_at_random(self, rng: Random) -> Iterator[None]:
        """Have the buckets listed again and again meanwhile; a request for another listing ends one that has begun."""
        ended = threading.Event()

        def ask() -> None:
            while not ended.wait(rng.random() * 2):
                for bucket in rng.sample(self.watched, min(3, len(self.watched))):
                    self.resume(bucket)

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def versions(self, bucket: str) -> dict[str, dict[str, Content]]:
        """What is listed of the bucket, delete markers included: key to version to content."""
        is_versioned = self.s3.get_bucket_versioning(Bucket=bucket).get("Status")
        if not is_versioned or self.others.get("versions") == "off":
            return {key: {"null": content} for key, content in self.objects(bucket).items()}
        found: dict[str, dict[str, Content]] = {}
        for page in self.s3.get_paginator("list_object_versions").paginate(Bucket=bucket):
            for one in (*page.get("Versions", ()), *page.get("DeleteMarkers", ())):
                content = (one["ETag"].strip('"'), one["Size"]) if one in page.get("Versions", ()) else None
                found.setdefault(one["Key"], {})[one["VersionId"]] = content
        return found

    def objects(self, bucket: str) -> dict[str, tuple[str, int]]:
        """The newest versions as the bucket lists them."""
        return {key: (one["ETag"].strip('"'), one["Size"]) for key, one in self.listed(bucket).items()}

    def mirrors(self, bucket: str) -> list[dict[str, tuple[str, int]]]:
        """The rows of a bucket in PostgreSQL and in Redis."""
        stored: dict[str, Record] = {}
        with contextlib.suppress(psycopg2.errors.UndefinedTable):  # it is created for the first event
            stored = rows(self.postgres, self.database, "rows")
        return [_contents(held, bucket) for held in (stored, hashed(self.redis, "rows"))]

    def consumer(self) -> Consumer:
        """Somebody who has read the topic to its end."""
        return Consumer.of([orjson.loads(message.value()) for message in self.topic.messages()])

    def check(self, *buckets: str) -> Consumer:
        """Mirrors and a consumer know what the buckets list, and nothing was recorded twice; also when listed again."""
        until(self.whole.settled, LATEST, what="everything delivered")
        recorded = self.whole.counters()["kafka:log"].recorded
        consumer = self.consumer()
        differences = {}
        for bucket in buckets:
            there = self.objects(bucket)
            drifts = [drift(mirror, there) for mirror in self.mirrors(bucket)]
            if any(drifts) or consumer.versions_in(bucket) != self.versions(bucket):
                differences[bucket] = (drifts, consumer.versions_in(bucket), self.versions(bucket))
        assert differences == {}
        assert consumer.twice == []
        self.list_again(buckets)
        assert self.whole.counters()["kafka:log"].recorded == recorded
        for entry in self.whole.audits():
            assert entry.difference == 0
        return consumer


@dataclass
class Consumer:
    """What somebody knows who goes by a topic's messages alone, as they come.

    `versions` are those of each path, `found` what listings have found, and `twice` that of it which changed nothing.
    """

    versions: dict[str, dict[str, Content]] = field(default_factory=dict)
    written: dict[tuple[str, str], str] = field(default_factory=dict)
    found: list[tuple[str, str]] = field(default_factory=list)
    twice: list[tuple[str, str]] = field(default_factory=list)

    @classmethod
    def of(cls, messages: Sequence[dict[str, Any]]) -> Consumer:
        """Somebody who has read these, of which some may be repeated."""
        consumer, seen = cls(), set[bytes]()
        for message in messages:
            [record] = message["Records"]
            if (text := orjson.dumps(record)) not in seen:
                seen.add(text)
                consumer.learn(record)
        return consumer

    def learn(self, record: Record) -> None:
        """Take the next record."""
        name, thing, place = record["eventName"].removeprefix("s3:"), record["s3"]["object"], path(record)
        versions, version = self.versions.setdefault(place, {}), thing.get("versionId") or "null"
        before = (version in versions, versions.get(version), self.written.get((place, version)))
        if name.startswith("ObjectCreated:") or name == "ObjectRemoved:DeleteMarkerCreated":
            is_marker = name.startswith("ObjectRemoved")
            versions[version] = None if is_marker else (thing.get("eTag", ""), thing.get("size", 0))
            self.written[place, version] = record["eventTime"]
        elif name.startswith("ObjectRemoved:"):
            versions.pop(version, None)
            self.written.pop((place, version), None)
        after = (version in versions, versions.get(version), self.written.get((place, version)))
        if record["eventSource"] == "bucketwire:watch":
            self.found.append((name, place.partition("/")[2]))
            if before == after:
                self.twice.append((name, place))

    def versions_in(self, bucket: str) -> dict[str, dict[str, Content]]:
        """What there is in a bucket: key to version to content."""
        start = f"{bucket}/"
        return {
            place.removeprefix(start): versions
            for place, versions in self.versions.items()
            if versions and place.startswith(start)
        }


def _source(bucket: str) -> str:
    return f"/v1/sources/bucket/{bucket}"


def _listings(shown: Mapping[str, Any]) -> int:
    return int(shown.get("listing", {}).get("listings", 0))


def _contents(held: Mapping[str, Record], bucket: str) -> dict[str, tuple[str, int]]:
    start = f"{bucket}/"
    things = {place.removeprefix(start): row["s3"]["object"] for place, row in held.items() if place.startswith(start)}
    return {key: (one.get("eTag", ""), one.get("size", 0)) for key, one in things.items()}


@contextmanager
def staged(postgres: services.Postgres, begin: Callable[[System], Any], grace: str, **others: str) -> Iterator[Stage]:
    """A service, and the store that `begin` starts for it, whose buckets are watched with these settings."""
    outbox, database = (f"{name}_{uuid4().hex[:12]}" for name in ("outbox", "target"))
    postgres.create_database(database)
    tokens = {"token": TOKEN, "api_tokens": f"admin:admin:{TOKEN}"}
    with ExitStack() as stack:
        broker, redis = (stack.enter_context(services.redis()) for _ in range(2))
        topic = Log(stack.enter_context(services.kafka()))
        topic.renew()
        url = postgres.create_database(outbox)
        whole = stack.enter_context(system(url, broker.url, lease_ttl="4s", lease_max_work="3s", **tokens))
        place, dsn = f"{services.LOOPBACK}:{redis.port}", postgres.dsn(database)
        whole.add_target("redis:rows", address=place, key="rows", policy="mirror")
        whole.add_target("postgresql:rows", connection_string=dsn, table="rows", policy="mirror")
        whole.add_target("kafka:log", **topic.values())
        worker = source_worker(whole.settings)
        stack.callback(worker.stop)
        worker.start()
        store = stack.enter_context(begin(whole))
        s3 = store.boto3()
        stack.callback(s3.close)
        yield Stage(store, s3, MANY, whole.settle, whole, worker, redis, postgres, database, topic, grace, others)


@pytest.mark.parametrize("store", STORES)
def test_whatever_a_store_does_is_found_if_it_reports_nothing(store: str, postgres_server: services.Postgres) -> None:
    """Listings begin and are interrupted while it is done, and the worker that lists is killed."""
    with services.receiver() as elsewhere, staged(postgres_server, lambda _: start(store, elsewhere.url), "0") as at:
        at.wait = lambda: at.list_again(at.watched[-1:])
        possible = [operation for operation in OPERATIONS if not at.cannot(operation)]
        buckets = []
        with at.listed_at_random(Random(1)):
            for number, operation in enumerate(possible):
                buckets.append(operation(at))
                if number == len(possible) // 2:
                    at.worker.kill()
                    at.worker.start()
        at.list_again(buckets)
        consumer = at.check(*buckets)
        assert len(consumer.found) > len(buckets)


@pytest.mark.parametrize("store", STORES)
def test_each_page_of_a_store_is_read(store: str, postgres_server: services.Postgres) -> None:
    """Of versions and delete markers, too; a page may end between those of one key."""
    with services.receiver() as elsewhere, staged(postgres_server, lambda _: start(store, elsewhere.url), "0") as at:
        is_versioned = not at.cannot(versions)
        bucket = at.bucket(versioned=is_versioned)

        def fill(number: int) -> None:
            key = f"{number % 7}/k{number}"
            at.put(bucket, key, "one")
            if is_versioned:
                at.put(bucket, key, "two")
                at.delete(bucket, key)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(fill, range(ENTRIES // 3 if is_versioned else ENTRIES)))
        at.list_again([bucket])
        assert len(at.check(bucket).found) == ENTRIES
        listing = at.shown(bucket)["listing"]
        assert listing["requests"] > 2 * listing["listings"]  # of which one asks for the bucket's versioning


@NIGHTLY
def test_what_minio_never_reports_is_found_and_nothing_else(postgres_server: services.Postgres, tmp_path: Path) -> None:
    with staged(postgres_server, lambda whole: start("minio", f"{whole.api.url}/v1/events"), "1s") as at:
        plain, versioned = at.bucket(), at.bucket(versioned=True)
        folders = ("batch", "forced", "kept")
        for bucket in (plain, versioned):
            for number in range(MANY):
                for folder in folders:
                    at.put(bucket, f"{folder}/{number}", f"one {number}")
            at.put(bucket, "forced/0", "two")
            at.delete(bucket, "forced/1")
        at.wait()
        at.list_again([plain, versioned])
        assert at.check(plain, versioned).found == []
        assert at.shown(versioned)["listing"]["explained"] > 0
        gone = [key for bucket in (plain, versioned) for key in forced(at, bucket, tmp_path)]
        at.list_again([plain, versioned])
        consumer = at.check(plain, versioned)
        assert sorted(consumer.found) == sorted(("ObjectRemoved:Delete", key) for key in gone)
        for bucket in (plain, versioned):
            at.put(bucket, "forced/0", "reported again")
            at.delete(bucket, "kept/0")
        at.wait()
        at.list_again([plain, versioned])
        assert at.check(plain, versioned).found == consumer.found
        at.sender.mc("rb", "--force", f"m/{plain}")
        at.resume(plain)
        until(lambda: at.shown(plain)["state"] == "failing", 60, what="a bucket that is gone")
        at.s3.create_bucket(Bucket=plain)
        until(lambda: at.shown(plain)["state"] == "paused", 120, what="an approval of what is gone")
        assert "the listing is empty" in at.shown(plain)["reason"]
        at.list_again([plain])
        assert at.check(plain, versioned).versions_in(plain) == {}


def forced(at: Stage, bucket: str, folder: Path) -> list[str]:
    """Have MinIO remove what is below `batch/` and `forced/` in ways that it reports none of; each version's key."""
    there = at.versions(bucket)
    job = folder / f"{bucket}.yaml"
    job.write_text(EXPIRE_ALL.format(bucket=bucket))
    at.sender.mc("batch", "start", "m", str(job))
    at.sender.mc("rm", "--force", "--purge", f"m/{bucket}/forced/")
    until(lambda: not at.listed(bucket).keys() - {f"kept/{number}" for number in range(MANY)}, 60, what="their end")
    left = at.versions(bucket)
    return [key for key, versions in there.items() for version in versions if version not in left.get(key, {})]


@pytest.mark.sender
@pytest.mark.parametrize("store", ["seaweedfs", "ceph"])
def test_what_expires_without_an_event_is_found_and_nothing_else(
    store: str, postgres_server: services.Postgres
) -> None:
    with staged(postgres_server, lambda whole: start(store, f"{whole.api.url}/v1/events"), "5s") as at:
        bucket = expire(at)
        # Ceph looks for new queues every 30 s, so that the object may be gone before it was reported.
        until(lambda: at.whole.counters()["kafka:log"].recorded >= 2, LATEST, what="both objects are reported")
        at.wait()
        at.list_again([bucket])
        assert at.check(bucket).found == [("ObjectRemoved:Delete", "expires/one")]
        if store == "ceph":  # whose lifecycle would end the object again
            at.s3.delete_bucket_lifecycle(Bucket=bucket)
        at.put(bucket, "expires/one", "reported again")
        at.wait()
        at.list_again([bucket])
        assert len(at.check(bucket).found) == 1


@pytest.mark.sender
def test_what_happens_while_the_receiver_of_versity_is_away_is_found(postgres_server: services.Postgres) -> None:
    with staged(postgres_server, lambda whole: start("versity", f"{whole.api.url}/v1/events"), "5s") as at:
        bucket = at.bucket()
        for number in range(MANY):
            at.put(bucket, f"before/{number}")
        at.wait()
        at.whole.api.stop()
        try:
            for number in range(MANY):
                at.put(bucket, f"away/{number}", "not reported")
            at.put(bucket, "before/0", "changed")
            at.delete(bucket, "before/1")
        finally:
            at.whole.api.start()
        at.list_again([bucket])
        created = [("ObjectCreated:Put", key) for key in ("before/0", *(f"away/{number}" for number in range(MANY)))]
        expected = sorted([*created, ("ObjectRemoved:Delete", "before/1")])
        assert sorted(at.check(bucket).found) == expected
        for key in ("before/1", "away/0"):
            at.put(bucket, key, "reported again")
        at.wait()
        at.list_again([bucket])
        assert sorted(at.check(bucket).found) == expected


@pytest.mark.sender
def test_a_bucket_whose_events_have_no_version_ids_is_watched_without_versions(
    postgres_server: services.Postgres,
) -> None:
    def begin(whole: System) -> Any:
        return start("versity", f"{whole.api.url}/v1/events")

    with staged(postgres_server, begin, "5s", versions="off") as at:
        bucket = versions(at)
        at.wait()
        at.list_again([bucket])
        found = at.check(bucket).found
        assert {key for _, key in found} == {"older", "newest", "shown"}  # each a removal of a version or of a marker
        assert len(found) == 3
