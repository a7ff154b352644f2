"""A real MinIO posts its events with a token, and every target gets all of them, in order, as MinIO wrote them."""

from __future__ import annotations

import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from io import BytesIO
from itertools import islice
from random import Random
from typing import Any
from uuid import uuid4

import orjson
import pytest
import sqlalchemy as sa
from minio.deleteobjects import DeleteObject

from app.outbox import tables
from tests import services
from tests.services import Proxy, forking, until
from tests.support.properties import times
from tests.support.service_processes import System, system
from tests.support.target_readers import Expected, Record, appended, create_log, hashed, listed, path, posted, rows

PLAIN, VERSIONED = "plain", "versioned"
EVENTS = ["s3:ObjectCreated:*", "s3:ObjectAccessed:*", "s3:ObjectRemoved:*"]
KEYS = [
    "a.txt",
    "folder/with space/b  c.txt",
    "plus+sign+.txt",
    "percent%20literal%2Bx%.txt",
    "quotes\"'`and<&>.txt",
    "new\nline\ttab.txt",
    "emoji-🎉-日本語-é.txt",
    "/".join("k" * 199 for _ in range(5)) + "k",  # 1,000 bytes; MinIO makes folders, whose names may have 255
    "/".join("ж" * 99 for _ in range(5)) + "/жж",  # 999 bytes
]


WHOLE = 2 * times(2, len(KEYS))  # lives that are seen to their ends; a name is written alike in every kind of event
OVERTAKEN = times(2, 5)  # events that come in after a newer one of their object
_OVER = object()  # a life that is


@dataclass
class Stage:
    """MinIO, the service, and its five targets, each of which gets everything; `reference` gets it from MinIO."""

    whole: System
    minio: services.MinIO
    reference: services.Receiver
    receiver: services.Receiver
    redis: services.Redis
    postgres: services.Postgres
    database: str
    wire: Proxy  # between MinIO and the service
    emitted: int = 0
    s3: Any = field(init=False)  # a boto3 client of the MinIO, which threads may share

    def __post_init__(self) -> None:
        self.s3 = self.minio.boto3()

    def recorded(self) -> list[Record]:
        """What stands in the log, in its order."""
        with self.whole.database.reading() as connection:
            found = connection.execute(sa.select(tables.events.c.record).order_by(tables.events.c.seq)).scalars()
            return [orjson.loads(record) for record in found]

    def recorded_count(self) -> int:
        """How many events the log has."""
        return self.whole.counters()["redis:list"].recorded

    def emits(self, count: int) -> None:
        """So many more events have been emitted: return when they are recorded and the reference has them."""
        self.emitted += count
        until(lambda: len(self.reference.requests()) >= self.emitted, 10, what=f"event {self.emitted} from MinIO")
        until(lambda: self.recorded_count() >= self.emitted, 10, what="the same event recorded")

    def check(self, expected: Expected) -> None:
        """Every target has it all, in order, once; both namespaces hold what MinIO's buckets hold."""
        until(self.whole.settled, 30, what="everything delivered")
        assert expected.count == self.emitted == len(self.reference.requests())
        assert expected.check(posted(self.receiver), "webhook") == 0
        assert expected.check(listed(self.redis, "list"), "Redis list") == 0
        assert expected.check(appended(self.postgres, self.database, "log"), "PostgreSQL access") == 0
        holds = self.listing()
        assert described(hashed(self.redis, "rows")) == holds
        assert described(rows(self.postgres, self.database, "rows")) == holds
        for entry in self.whole.audits():
            assert entry.difference == 0
            assert entry.counters.recorded == entry.counters.delivered + entry.counters.superseded == self.emitted

    def listing(self) -> dict[str, tuple[str, str]]:
        """What the buckets hold: path to eTag and version."""
        client, found = self.s3, dict[str, tuple[str, str]]()
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=PLAIN):
            found |= {f"{PLAIN}/{one['Key']}": (one["ETag"].strip('"'), "") for one in page.get("Contents", ())}
        for page in client.get_paginator("list_object_versions").paginate(Bucket=VERSIONED):
            for one in page.get("Versions", ()):
                if one["IsLatest"]:
                    found[f"{VERSIONED}/{one['Key']}"] = (one["ETag"].strip('"'), one["VersionId"])
        return found


def described(found: dict[str, Record]) -> dict[str, tuple[str, str]]:
    """A namespace's rows as a listing has them."""
    things = {path: record["s3"]["object"] for path, record in found.items()}
    return {path: (thing["eTag"], thing.get("versionId", "")) for path, thing in things.items()}


@pytest.fixture
def stage(postgres_server: services.Postgres) -> Iterator[Stage]:
    admin = f"admin-{uuid4().hex}"
    outbox, database = (f"{name}_{uuid4().hex[:12]}" for name in ("outbox", "target"))
    postgres_server.create_database(database)
    create_log(postgres_server, database, "log")
    with ExitStack() as stack:
        broker, redis = (stack.enter_context(services.redis()) for _ in range(2))
        receiver, reference = (stack.enter_context(services.receiver()) for _ in range(2))
        whole = stack.enter_context(
            system(postgres_server.create_database(outbox), broker.url, token=admin, api_tokens=f"admin:admin:{admin}")
        )
        place, dsn = f"{services.LOOPBACK}:{redis.port}", postgres_server.dsn(database)
        whole.add_target("webhook:all", endpoint=receiver.url)
        whole.add_target("redis:list", address=place, key="list", format="access")
        whole.add_target("redis:rows", address=place, key="rows")
        whole.add_target("postgresql:log", connection_string=dsn, table="log", format="access")
        whole.add_target("postgresql:rows", connection_string=dsn, table="rows")
        wire = stack.enter_context(services.proxy(whole.api.port))
        events = f"http://{services.LOOPBACK}:{wire.port}/v1/events"
        endpoints = {"BW": (events, token(whole, "ingest")), "REFERENCE": (reference.url, "")}
        minio = stack.enter_context(services.minio(webhooks=endpoints))
        made = Stage(whole, minio, reference, receiver, redis, postgres_server, database, wire)
        stack.callback(made.s3.close)
        make_buckets(made)
        yield made


def token(whole: System, scope: str) -> str:
    """A token made as an operator makes one."""
    argv = [forking.command(), "token", "create", "minio", "--scope", scope]
    made = subprocess.run(argv, env=dict(whole.settings), capture_output=True, text=True, timeout=60, check=True)
    return made.stdout.split()[-1]


def make_buckets(stage: Stage) -> None:
    client = stage.s3
    for bucket in (PLAIN, VERSIONED):
        client.create_bucket(Bucket=bucket)
        targets = [{"QueueArn": stage.minio.arn(name), "Events": EVENTS} for name in ("BW", "REFERENCE")]
        client.put_bucket_notification_configuration(
            Bucket=bucket, NotificationConfiguration={"QueueConfigurations": targets}
        )
    client.put_bucket_versioning(Bucket=VERSIONED, VersioningConfiguration={"Status": "Enabled"})


def plain_life(stage: Stage, key: str) -> Iterator[None]:
    """One key of a bucket without versions, from its first object to its last; yields after each event."""
    s3, minio = stage.s3, stage.minio.client()
    labels = {"ContentType": "text/<b>&", "Metadata": {"note": "a <b> & c"}}

    def read() -> bytes:
        found: bytes = s3.get_object(Bucket=PLAIN, Key=key)["Body"].read()
        return found

    steps: Sequence[Callable[[], object]] = [
        lambda: s3.put_object(Bucket=PLAIN, Key=key, Body=b"first"),
        lambda: s3.put_object(Bucket=PLAIN, Key=key, Body=b"second", **labels),
        lambda: s3.head_object(Bucket=PLAIN, Key=key),
        read,
        lambda: s3.put_object_tagging(Bucket=PLAIN, Key=key, Tagging={"TagSet": [{"Key": "k", "Value": "v"}]}),
        lambda: s3.delete_object_tagging(Bucket=PLAIN, Key=key),
        lambda: s3.copy_object(Bucket=PLAIN, Key=f"copied/{key}"[:1000], CopySource={"Bucket": PLAIN, "Key": key}),
        lambda: s3.delete_object(Bucket=PLAIN, Key=key),
        lambda: s3.delete_object(Bucket=PLAIN, Key=key),  # there is none any more
        lambda: minio.put_object(PLAIN, key, BytesIO(b"third"), 5),
    ]
    for step in steps:
        step()
        yield


def versioned_life(stage: Stage, key: str) -> Iterator[None]:
    """One key of a versioned bucket: versions, markers, and what is left; yields after each event."""
    s3 = stage.s3

    def put(content: bytes) -> str:
        version: str = s3.put_object(Bucket=VERSIONED, Key=key, Body=content)["VersionId"]
        return version

    def delete(version: str | None = None) -> str:
        which = {"VersionId": version} if version else {}
        deleted: str = s3.delete_object(Bucket=VERSIONED, Key=key, **which).get("VersionId", "")
        return deleted

    first = put(b"1")
    yield
    second = put(b"2")
    yield
    marker = delete()
    yield
    delete(marker)  # undeleted: the second is back
    yield
    delete(first)  # an old version: changes nothing
    yield
    third = put(b"3")
    yield
    delete(third)  # the second is back again
    yield
    assert s3.get_object(Bucket=VERSIONED, Key=key)["VersionId"] == second
    yield
    put(b"4")
    yield
    delete()
    yield
    delete(str(uuid4()))  # there is no such version
    yield


def live(stage: Stage, lives: Sequence[Iterator[None]]) -> None:
    """All these lives at once, an event of each after the other; the next of an object when the last is recorded."""
    while lives := [life for life in lives if next(life, _OVER) is not _OVER]:
        stage.emits(len(lives))


def multipart(stage: Stage, bucket: str, key: str) -> None:
    s3 = stage.s3
    upload = s3.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
    place = {"Bucket": bucket, "Key": key, "UploadId": upload}
    parts = []
    for number, content in enumerate([b"x" * (5 << 20), b"end"], 1):
        tag = s3.upload_part(**place, PartNumber=number, Body=content)["ETag"]
        parts.append({"PartNumber": number, "ETag": tag})
    s3.complete_multipart_upload(**place, MultipartUpload={"Parts": parts})
    stage.emits(1)


def bulk_delete(stage: Stage, bucket: str, keys: Iterable[str]) -> None:
    """Several keys in one request; MinIO tells of a key that never was, too."""
    wanted = [DeleteObject(key) for key in keys]
    assert not list(stage.minio.client().remove_objects(bucket, wanted))
    stage.emits(len(wanted))


def test_everything_that_happens_in_minio_arrives_everywhere_as_minio_wrote_it(stage: Stage) -> None:
    lives = [life(stage, key) for key in KEYS for life in (plain_life, versioned_life)]
    live(stage, [life if number < WHOLE else islice(life, 3) for number, life in enumerate(lives)])
    for bucket in (PLAIN, VERSIONED):
        multipart(stage, bucket, "parts/big é+%.bin")
        for number in range(4):
            stage.s3.put_object(Bucket=bucket, Key=f"bulk/{number} +%.txt", Body=b"x")
            stage.emits(1)
        bulk_delete(stage, bucket, ["bulk/0 +%.txt", "bulk/1 +%.txt", "bulk/never there"])

    stage.check(Expected.of(posted(stage.reference)))
    wrote, sent = (by_key(receiver.bodies()) for receiver in (stage.reference, stage.receiver))
    assert sent == wrote


def by_key(bodies: Iterable[bytes]) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = defaultdict(list)
    for body in bodies:
        found[orjson.loads(body)["Key"]].append(body)
    return dict(found)


@dataclass
class Client:
    """Works at keys of its own, one request after the other, in both buckets."""

    stage: Stage
    number: int

    def __post_init__(self) -> None:
        self.rng, self.s3 = Random(self.number), self.stage.s3
        self.versions: dict[str, list[str]] = defaultdict(list)

    def work(self, count: int) -> int:
        """So many requests, each of which emits one event."""
        for _ in range(count):
            bucket, key = self.rng.choice([PLAIN, VERSIONED]), str(self.number)
            known = self.versions[key] if bucket == VERSIONED else []
            if self.rng.random() < 0.55:
                answer = self.s3.put_object(Bucket=bucket, Key=key, Body=self.rng.randbytes(8))
            elif known and self.rng.random() < 0.6:
                gone = known.pop(self.rng.randrange(len(known)))
                self.s3.delete_object(Bucket=bucket, Key=key, VersionId=gone)
                continue
            else:
                answer = self.s3.delete_object(Bucket=bucket, Key=key)
            if "VersionId" in answer:
                known.append(answer["VersionId"])
        return count


def overtaken(recorded: Iterable[Record]) -> int:
    """How many events came in after a newer one of their object."""
    newest: dict[str, str] = defaultdict(str)
    count = 0
    for record in recorded:
        sequencer = record["s3"]["object"]["sequencer"]
        count += sequencer < newest[path(record)]
        newest[path(record)] = max(newest[path(record)], sequencer)
    return count


@pytest.mark.nightly(
    "events of every sender that overtake each other, in test_frontend_order.py, test_sender_sequences.py"
)
def test_events_that_overtake_each_other_in_minio_leave_namespaces_that_equal_the_buckets(stage: Stage) -> None:
    """Its default is to send with as many threads as there are processors, whatever object an event is about.

    One thread's event is kept back on its way until those of the others are recorded: by chance one in hundreds is.
    """
    clients = [Client(stage, number) for number in range(times(3, 6))]
    with ThreadPoolExecutor(len(clients)) as pool:
        for _ in range(10):
            stage.wire.hold_next()
            count = sum(pool.map(lambda client: client.work(10), clients))
            others = stage.emitted + count - 1
            until(lambda: stage.recorded_count() >= others, 10, what="all but one recorded")  # noqa: B023
            stage.wire.release()
            stage.emits(count)
            if overtaken(stage.recorded()) >= OVERTAKEN:
                break
    assert overtaken(stage.recorded()) >= OVERTAKEN, "MinIO kept the order, so this shows nothing"
    stage.check(Expected.of(stage.recorded()))
    wrote, sent = (Counter(receiver.bodies()) for receiver in (stage.reference, stage.receiver))
    assert sent == wrote
