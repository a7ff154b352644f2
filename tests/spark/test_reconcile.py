"""End to end with a real MinIO, the service and its targets: every kind of drift is found and repaired exactly."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import parse_qs, quote
from uuid import uuid4

import orjson
import pytest
from pyspark.sql import SparkSession

from app.config.arn import TargetId
from app.config.settings import Settings
from app.listings.inventory import manifest
from app.listings.limits import BadListing, RepairLimits
from app.outbox import tables
from app.outbox.engine.database import now_ms
from app.outbox.policies import RECONCILIATIONS
from app.outbox.reconcile.runs import Reconciliations, read_findings
from app.outbox.registry import Registry, open_registry
from spark_jobs.api_client import Api
from spark_jobs.iceberg import Warehouse
from spark_jobs.jobs.reconcile import ReconcileConfig, ReconcileResult, reconcile
from spark_jobs.jobs.tables import Tables, update
from spark_jobs.reports import LINES
from tests import provision, services
from tests.services import until
from tests.spark.conftest import Job
from tests.support import inventories
from tests.support.listings import unpack
from tests.support.properties import times
from tests.support.recording_proxy import Wiretap
from tests.support.service_processes import BUCKETWIRE, System, source_worker, system
from tests.support.target_contents import (
    TABLE,
    ElasticsearchContents,
    MysqlContents,
    PostgresContents,
    RedisContents,
    TargetContents,
)

BUCKETS = {
    "postgresql:rows": "plain",
    "redis:rows": "versioned",
    "mysql:rows": "tabled",
    "elasticsearch:rows": "searched",
}
EVENTS = ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]
ODD = ["dir/", "x y+%41é🎉.txt", "quotes\"'`\\<&>", "new\nline\ttab", "%2F", "a+b", "日本/$x$"]
COUNT = 120
OLD = times(200, 2_100)  # so many that few of them are removed
BUSY = times(12, 60)  # keys of a busy writer
ADMIN = "admin-0123456789abcdef"
PAUSE = 1.2 / BUSY  # seconds between two of its writes: it changes the most of the keys while a run reads them


@dataclass
class Stage:
    """MinIO sends its events to the service, whose targets hold a bucket each."""

    spark: SparkSession
    whole: System
    minio: services.MinIO
    stores: dict[str, TargetContents]
    folder: Path
    s3: Any

    def add(self, target: str, contents: TargetContents, **settings: str) -> None:
        """Add a target with its bucket, whose events go to it."""
        bucket = BUCKETS[target]
        self.stores[target] = contents
        self.whole.add_target(target, bucket, EVENTS, **settings)
        self.s3.create_bucket(Bucket=bucket)
        self.notify(bucket, on=True)

    def notify(self, bucket: str, *, on: bool) -> None:
        """Whether the bucket's events reach the service."""
        configured = [{"QueueArn": self.minio.arn("BW"), "Events": EVENTS}] if on else []
        self.s3.put_bucket_notification_configuration(
            Bucket=bucket, NotificationConfiguration={"QueueConfigurations": configured} if on else {}
        )

    def put(self, bucket: str, key: str, content: bytes) -> None:
        self.s3.put_object(Bucket=bucket, Key=key, Body=content)

    def delete(self, bucket: str, key: str) -> None:
        self.s3.delete_object(Bucket=bucket, Key=key)

    def objects(self, bucket: str) -> dict[str, tuple[str, int, str]]:
        """Return the bucket's objects: path to ETag, size and version."""
        found = {}
        for page in self.s3.get_paginator("list_object_versions").paginate(Bucket=bucket):
            for one in page.get("Versions", ()):
                if one["IsLatest"]:
                    version = "" if one["VersionId"] == "null" else one["VersionId"]
                    found[f"{bucket}/{one['Key']}"] = (one["ETag"].strip('"'), one["Size"], version)
        return found

    def run(self, target: str, bucket: str, **more: Any) -> ReconcileResult:
        settings = Settings.from_environ(self.whole.settings)
        registry: Registry = open_registry(self.whole.database, settings)
        kind, _, name = target.partition(":")
        chosen = {"grace": 0, "arrival": 0.0, "endpoint": self.minio.url, "reports": str(self.folder)} | more
        config = ReconcileConfig(bucket=bucket, target=TargetId(kind, name), **chosen)
        return reconcile(self.spark, self.whole.database, registry, config, Api(self.whole.api.url, ADMIN))

    def settle(self, target: str) -> None:
        contents, bucket = self.stores[target], BUCKETS[target]
        until(self.whole.settled, 60, what="everything delivered")
        objects = self.objects(bucket)  # nobody writes any more
        until(lambda: described(contents.all()) == objects, 60, what="the rows to be those of the bucket")
        # What has come after the first look is delivered, but if its settlement is late, it is delivered once more.
        until(self.whole.settled, 60, what="everything settled")


def described(rows: dict[str, Any]) -> dict[str, tuple[str, int, str]]:
    """Rows as a bucket's listing has them."""
    things = {path: document["Records"][0]["s3"]["object"] for path, document in rows.items()}
    return {
        path: (thing["eTag"], thing.get("size", 0), thing.get("versionId", "").replace("null", ""))
        for path, thing in things.items()
    }


def inventory(stage: Stage, bucket: str) -> dict[str, tuple[str, int, str]]:
    """Return the bucket's objects by an Iceberg table that is filled from the log, as `Stage.objects` does."""
    session = stage.spark.newSession()
    Warehouse(str(services.new_folder("tables"))).open(session)
    tables = Tables(session)
    update(tables, stage.whole.database, 7 * 86_400_000)
    rows = tables.inventory.frame().where(f"bucket = '{bucket}' AND is_latest AND NOT is_delete_marker").collect()
    return {f"{bucket}/{row['key']}": (row["e_tag"], row["size"], row["version_id"] or "") for row in rows}


def lines(result: ReconcileResult) -> dict[str, str]:
    """Every finding of the JSON lines: key to kind, with what differs, `~` before what is in flight.

    That the time differs, too, is left out: it counts only where more than a minute went by, as on a busy machine.
    """
    found = {}
    for part in Path(result.report, LINES).glob("*.json"):
        for one in map(orjson.loads, part.read_text().splitlines()):
            kind = one["kind"] + (f":{one['differs']}" if one["differs"] else "")
            found[one["key"]] = "~" * one["in_flight"] + kind.removesuffix(",time")
    return found


@pytest.fixture(scope="module")
def stage(spark: SparkSession, postgres_server: services.Postgres) -> Iterator[Stage]:
    outbox, database = (f"{name}_{uuid4().hex[:12]}" for name in ("outbox", "target"))
    postgres_server.create_database(database)
    with postgres_server.connection(database) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE rows (key varchar PRIMARY KEY, value jsonb)")  # as MinIO leaves one
    with ExitStack() as stack:
        broker, redis = (stack.enter_context(services.redis()) for _ in range(2))
        outbox_url, tokens = postgres_server.create_database(outbox), f"tests:admin:{ADMIN}"
        whole = stack.enter_context(system(outbox_url, broker.url, token=ADMIN, api_tokens=tokens))
        minio = stack.enter_context(services.minio(webhooks={"BW": (f"{whole.api.url}/v1/events", ADMIN)}))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("AWS_ACCESS_KEY_ID", minio.access_key)
        patch.setenv("AWS_SECRET_ACCESS_KEY", minio.secret_key)
        s3 = minio.boto3()
        stack.callback(s3.close)
        stage = Stage(spark, whole, minio, {}, services.new_folder("reports"), s3)
        contents = PostgresContents(postgres_server, database)
        stage.add("postgresql:rows", contents, connection_string=postgres_server.dsn(database), table=TABLE)
        place = f"{services.LOOPBACK}:{redis.port}"
        stage.add("redis:rows", RedisContents(redis), address=place, key=TABLE)
        s3.put_bucket_versioning(Bucket="versioned", VersioningConfiguration={"Status": "Enabled"})
        yield stage


@pytest.fixture(params=BUCKETS)
def target(stage: Stage, request: pytest.FixtureRequest) -> str:
    """Each target; a server that no other test of this module needs runs from here on."""
    name: str = request.param
    if name == "mysql:rows" and name not in stage.stores:
        mysql: services.MySQL = request.getfixturevalue("mysql_server")
        mysql.create_database(database := f"target_{uuid4().hex[:12]}")
        tables = MysqlContents(mysql, database)
        stage.add(name, tables, dsn_string=tables.dsn, table=TABLE)
    if name == "elasticsearch:rows" and name not in stage.stores:
        index = ElasticsearchContents(request.getfixturevalue("elasticsearch_server"))
        stage.add(name, index, **index.login, index=TABLE)
    return name


def old(number: int) -> str:
    """The key of an object from before notifications were enabled."""
    return f"old/{number % 9}/{number:04}"


def fill_unreported(stage: Stage, bucket: str) -> None:
    """Objects that are older than the notifications, all in a request that MinIO unpacks."""
    stage.notify(bucket, on=False)
    unpack(stage.minio, bucket, map(old, range(OLD)))
    stage.notify(bucket, on=True)


def fill(stage: Stage, bucket: str) -> None:
    """Objects, some written again, some deleted (or covered by a marker), all of them reported."""
    for key in [*ODD, *(f"many/{number % 3}/{number:03}" for number in range(COUNT))]:
        stage.put(bucket, key, key.encode())
    for key in ("a+b", "many/0/003"):
        stage.put(bucket, key, b"again")
    for key in ("many/1/001", "%2F"):
        stage.delete(bucket, key)


@pytest.mark.nightly(
    "Redis; each target's rows in test_reading.py: one comparison for the rows of any target",
    when=lambda target: target in {"postgresql:rows", "mysql:rows", "elasticsearch:rows"},
)
def test_drift_of_every_kind_is_found_exactly_and_repaired_exactly(stage: Stage, target: str) -> None:
    bucket, rows, write = BUCKETS[target], stage.stores[target].all, stage.stores[target].set
    fill_unreported(stage, bucket)
    first = stage.run(target, bucket, repair=True, limits=RepairLimits(rate=100_000))
    assert (first.state, lines(first)) == ("repaired", {old(number): "missing" for number in range(OLD)})
    fill(stage, bucket)
    stage.settle(target)
    before = rows()
    expected = {}
    for key in ("many/0/000", "x y+%41é🎉.txt", "日本/$x$", *map(old, range(20))):
        write(f"{bucket}/{key}", None)
        expected[key] = "missing"
    changed = orjson.loads(orjson.dumps(before[f"{bucket}/many/0/006"]))
    changed["Records"][0]["s3"]["object"] |= {"eTag": "0" * 32, "size": 999}
    write(f"{bucket}/many/0/006", changed)
    expected["many/0/006"] = "stale:etag,size"
    ghost = orjson.loads(orjson.dumps(before[f"{bucket}/a+b"]).replace(b"a%2Bb", b"gh%2Bost"))
    write(f"{bucket}/gh+ost", ghost)
    expected["gh+ost"] = "orphaned"
    write(f"{bucket}/many/0/009", {"Records": []})
    write(f"{bucket}/many/0/012", before[f"{bucket}/many/0/015"])
    write(f"{bucket}/nothing", {"of": "ours"})
    expected |= dict.fromkeys(["many/0/009", "many/0/012", "nothing"], "malformed")
    if target == "elasticsearch:rows":
        # The hash that is a document's id cannot be reversed to its object.
        expected |= {"many/0/009": "missing", "many/0/012": "missing"}
        del expected["nothing"]
    write("elsewhere/x", {"of": "somebody"})
    stage.notify(bucket, on=False)  # events that MinIO does not send
    stage.put(bucket, "many/2/002", b"other")
    stage.put(bucket, "quotes\"'`\\<&>", b"other")
    stage.put(bucket, "new and unreported", b"x")
    again, deleted = [old(number) for number in range(20, 40)], [old(number) for number in range(40, 60)]
    for key in again:
        stage.put(bucket, key, b"other")
    for key in ("many/0/018", "new\nline\ttab", *deleted):
        stage.delete(bucket, key)
    stage.notify(bucket, on=True)
    version = ",version" if bucket == "versioned" else ""
    expected |= dict.fromkeys(["many/2/002", "quotes\"'`\\<&>", *again], f"stale:etag,size{version}")
    expected |= dict.fromkeys(["many/0/018", "new\nline\ttab", *deleted], "orphaned") | {
        "new and unreported": "missing"
    }

    removals = sum(kind == "orphaned" for kind in expected.values()) + ("nothing" in expected)
    found = stage.run(
        target,
        bucket,
        repair=True,
        limits=RepairLimits(max_repairs=0, max_removals=0, always_allowed_removals=removals - 1),
    )
    assert (found.state, lines(found), found.counts["repaired"]) == ("drift", expected, 0)
    assert f"{removals} of" in found.problem
    stored = read_findings(stage.whole.database, Path(found.report).name, limit=RECONCILIATIONS.max_findings)
    assert {one.facts["key"]: one.kind for one in stored} == {
        key: kind.partition(":")[0] for key, kind in expected.items()
    }
    page = Path(found.page).read_text()
    assert "Drift by folder" in page
    assert "new and unreported" in page

    repaired = stage.run(target, bucket, repair=True)
    assert (repaired.state, repaired.counts["repaired"]) == ("repaired", len(expected))
    write("elsewhere/x", None)
    if "nothing" not in expected:
        write(f"{bucket}/nothing", None)
    stage.settle(target)
    untouched = {path: row for path, row in rows().items() if path.removeprefix(f"{bucket}/") not in expected}
    assert untouched == {path: row for path, row in before.items() if path.removeprefix(f"{bucket}/") not in expected}
    last = stage.run(target, bucket, retention=0)
    assert (last.state, lines(last)) == ("clean", {})
    assert last.counts["objects"] == last.counts["target_rows"] == len(stage.objects(bucket))
    states = [each.state for each in Reconciliations(stage.whole.database).list(limit=3)]
    assert states == ["clean", "repaired", "drift"]
    reports = [Path(each.report).exists() for each in (first, found, repaired, last)]
    assert reports == [False, True, True, True], "of each state the last is kept"
    for entry in stage.whole.audits():
        assert entry.difference == 0
    if bucket in ("plain", "versioned") and times(0, 1):  # its first update of tables costs as much as all runs here
        assert inventory(stage, bucket) == stage.objects(bucket), "the repair's events reach the tables, too"


def asked(said: bytes, bucket: str) -> list[str]:
    """Return the prefixes of the listings of a bucket that clients asked for."""
    queries = [query.decode() for query in re.findall(rf"GET /{bucket}\?([^ ]*) HTTP".encode(), said)]
    return sorted(prefix for query in queries for prefix in parse_qs(query).get("prefix", ()))


@pytest.mark.parametrize("target", ["postgresql:rows", "redis:rows"])
def test_an_incremental_run_compares_exactly_the_keys_that_events_have_named(
    stage: Stage, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_jobs.jobs.reconcile.CLOCK_SKEW", 0)  # or every event here is young
    bucket, store, random = BUCKETS[target], stage.stores[target], Random(target)
    for number in range(20):
        stage.put(bucket, f"quiet/{number}", b"x")
    stage.settle(target)
    with stage.whole.database.writing() as connection:  # as before the first run
        connection.execute(tables.reconciliations.update().values(position=None))
    whole = stage.run(target, bucket, incremental=True)
    assert (whole.state, whole.is_incremental) == ("clean", False)
    assert "The whole bucket was compared, because no run of the whole bucket has ended." in whole.problem
    keys = [
        *ODD,
        "folder/",  # and no "folder": MinIO lists no object below another one
        "folder/a",
        "folder-",
        "a",
        "ab",
        "a\u00e9",
        *(f"n/{number}" for number in range(30)),
    ]
    exists = dict[str, bool]()
    for key in random.choices(keys, k=60):
        # MinIO removes a folder's object without saying of which version.
        exists[key] = not exists.get(key) or key.endswith("/") or random.random() < 0.6
        if exists[key]:
            stage.put(bucket, key, random.randbytes(9))
        else:
            stage.delete(bucket, key)
    stage.settle(target)
    rows = store.all()
    there = sorted(key for key, is_there in exists.items() if is_there)
    expected = dict.fromkeys(random.sample(there, 9), "missing")
    other = orjson.dumps(rows[f"{bucket}/{there[0]}"])
    for key in expected:
        store.set(f"{bucket}/{key}", None)
    for key in [key for key, is_there in exists.items() if not is_there][:3]:
        encoded = quote(key, safe="").encode()
        store.set(f"{bucket}/{key}", orjson.loads(other.replace(quote(there[0], safe="").encode(), encoded)))
        expected[key] = "orphaned"
    store.set(f"{bucket}/quiet/3", None)
    store.set(f"{bucket}/nobody", {"of": "ours"})
    with Wiretap(stage.minio) as tap:
        found = stage.run(target, bucket, incremental=True, endpoint=f"http://{services.LOOPBACK}:{tap.port}")
    assert (found.state, found.is_incremental, lines(found)) == ("drift", True, expected)
    assert asked(tap.said, bucket) == sorted(exists)
    assert found.counts["objects"] == len(there)
    repaired = stage.run(target, bucket, incremental=True, repair=True)  # what was left is found again
    assert (repaired.state, lines(repaired)) == ("repaired", expected)
    until(stage.whole.settled, 60, what="everything delivered")
    again = stage.run(target, bucket, incremental=True)
    assert (again.state, lines(again)) == ("clean", {})
    last = stage.run(target, bucket, repair=True)
    assert lines(last) == {"quiet/3": "missing", "nobody": "malformed"}
    stage.settle(target)


def test_writers_at_work_are_not_taken_for_drift(stage: Stage) -> None:
    bucket, over = "plain", threading.Event()
    keys = [f"busy/{number:03}" for number in range(BUSY)]
    for key in keys:
        stage.put(bucket, key, b"first")
    stage.settle("postgresql:rows")
    written = 0

    def work() -> None:
        nonlocal written
        client = stage.minio.client()
        while not over.is_set():
            key = keys[written % len(keys)]
            if written % 3:
                client.put_object(bucket, key, io.BytesIO(b"x" * (written % 50)), written % 50)
            else:
                client.remove_object(bucket, key)
            written += 1
            over.wait(PAUSE)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        until(lambda: written > BUSY, 10, what="the writer to be at it")
        result = stage.run("postgresql:rows", bucket, repair=True, arrival=2.0)
    finally:
        over.set()
        thread.join()
    assert written > 2 * BUSY
    assert {key: kind for key, kind in lines(result).items() if not kind.startswith("~")} == {}
    assert result.counts["repaired"] == 0
    stage.settle("postgresql:rows")


def test_a_listing_with_bad_lines_removes_nothing(stage: Stage, tmp_path: Path) -> None:
    bucket = "plain"
    listing = tmp_path / "half.json"
    out = [orjson.dumps(one) for one in stage.minio.mc("ls", "--recursive", f"m/{bucket}")]
    listing.write_bytes(b"\n".join(out[: len(out) // 2]) + b'\n{"status":"succ')
    with stage.whole.database.reading() as connection:
        now = connection.exec_driver_sql("SELECT max(received_at) FROM events").scalar_one() + 1
    result = stage.run(
        "postgresql:rows",
        bucket,
        listing=str(listing),
        listed_at=now,
        repair=True,
        limits=RepairLimits(max_removals=100),
    )
    assert (result.counts["unreadable"], result.counts["repaired"]) == (1, 0)
    assert result.counts["orphaned"] == len(out) - len(out) // 2
    assert "1 lines of the listing could not be read" in result.problem
    assert result.state == "drift"


def test_an_inventory_is_used_completely_or_not_at_all(stage: Stage, tmp_path: Path) -> None:
    bucket, store = "plain", stage.stores["postgresql:rows"]
    stage.put(bucket, "in the inventory", b"x")
    stage.settle("postgresql:rows")
    found = inventories.entries(stage.minio, bucket, versioned=False)
    contents = [inventories.as_csv(half) for half in (found[::2], found[1::2])]
    written = inventories.report(tmp_path, bucket, "CSV", contents, versioned=False)
    with stage.whole.database.reading() as connection:
        now = connection.exec_driver_sql("SELECT max(received_at) FROM events").scalar_one() + 1
    written.content["creationTimestamp"] = str(now)
    written.name = f"{datetime.fromtimestamp(now / 1000, UTC):%Y-%m-%dT%H-%MZ}"
    report = manifest(written.write(), inventories.nowhere)
    store.set(f"{bucket}/in the inventory", None)
    more = {"inventory": report, "listed_at": report.begun, "repair": True, "limits": RepairLimits(max_removals=100)}

    lost = written.files[0].read_bytes()
    written.files[0].unlink()
    with pytest.raises(BadListing, match="cannot be read"):
        stage.run("postgresql:rows", bucket, **more)
    (run,) = Reconciliations(stage.whole.database).list(limit=1)
    assert (run.state, run.counts["repaired"]) == ("failed", 0)
    written.files[0].write_bytes(lost)
    result = stage.run("postgresql:rows", bucket, **more)
    assert (result.state, lines(result)) == ("repaired", {"in the inventory": "missing"})
    assert result.counts["objects"] == len(found)
    stage.settle("postgresql:rows")


@pytest.mark.promise
def test_no_row_is_repaired_from_an_old_listing(stage: Stage, tmp_path: Path) -> None:
    bucket, store = "plain", stage.stores["postgresql:rows"]
    for key in ("rewritten", "removed"):
        stage.put(bucket, key, b"old")
    stage.settle("postgresql:rows")
    file = tmp_path / "old.json"
    file.write_bytes(b"\n".join(map(orjson.dumps, stage.minio.mc("ls", "--recursive", f"m/{bucket}"))))
    time.sleep(0.01)
    listed_at = now_ms()
    stage.put(bucket, "rewritten", b"new content")
    stage.delete(bucket, "removed")
    stage.settle("postgresql:rows")
    rows: Any = store.all()
    more: Any = {"listing": str(file), "repair": True, "limits": RepairLimits(max_removals=100)}
    with pytest.raises(BadListing, match="events since then may have left the log"):
        stage.run("postgresql:rows", bucket, listed_at=now_ms() - 9 * 86_400_000, **more)
    with pytest.raises(BadListing, match="events since then may have left the log"):
        stage.run("postgresql:rows", bucket, listed_at=listed_at, log_retention=0, **more)
    result = stage.run("postgresql:rows", bucket, listed_at=listed_at, **more)
    assert lines(result) == {"removed": "~missing", "rewritten": "~stale:etag,size"}
    assert store.all() == rows


def test_a_row_whose_repair_the_api_refuses_ends_no_run_and_limits_that_are_reached_are_told(stage: Stage) -> None:
    bucket, store = BUCKETS["redis:rows"], stage.stores["redis:rows"]
    stage.put(bucket, "lost", b"x")
    stage.settle("redis:rows")
    kept = store.all()
    store.set(f"{bucket}/lost", None)
    none = stage.run("redis:rows", bucket, repair=True, limits=RepairLimits(max_creations=0))
    assert (none.counts["missing"], none.counts["repaired"], "so no row is created" in none.problem) == (1, 0, True)
    store.set(f"{bucket}/lost", kept[f"{bucket}/lost"])
    refused, orphans = ("../k", "k" * 100_000, "a//../b"), [f"gone/{number}" for number in range(3)]
    for key in (*refused, *orphans):
        store.set(f"{bucket}/{key}", {"of": "nobody"})
    everything = RepairLimits(max_removals=100)
    none = stage.run("redis:rows", bucket, repair=True, limits=RepairLimits(max_removals=0))
    assert (none.counts["repaired"], "more than 0 %" in none.problem) == (0, True)
    one = stage.run("redis:rows", bucket, repair=True, limits=RepairLimits(max_removals=100, max_repairs=1))
    assert "6 differences can be repaired, and a run repairs 1 at most" in one.problem
    most = stage.run("redis:rows", bucket, repair=True, limits=everything)
    assert "1 repair could not be recorded" in most.problem
    assert "a key has at most 4096 bytes" in most.problem
    until(lambda: not any(f"{bucket}/{key}" in store.all() for key in orphans), what="the orphans to go")
    for key in refused:
        store.set(f"{bucket}/{key}", None)
    assert store.all() == kept


def test_the_rows_of_a_bucket_that_is_gone_are_orphaned_within_the_limits(stage: Stage) -> None:
    bucket, store = "dropped", stage.stores["redis:rows"]
    stage.s3.create_bucket(Bucket=bucket)
    whole = stage.whole
    rule = {"bucket": bucket, "target": "redis:rows", "events": EVENTS}
    assert whole.ask("POST", "/v1/rules", json=rule).status_code < 300
    stage.notify(bucket, on=True)
    keys = [f"k/{number}" for number in range(12)]
    for key in keys:
        stage.put(bucket, key, b"x")
    until(lambda: len([path for path in store.all() if path.startswith(f"{bucket}/")]) == 12, what="the rows")
    stage.minio.mc("rm", "--force", "--purge", f"m/{bucket}/k/")  # of which MinIO sends nothing
    assert "Contents" not in stage.s3.list_objects_v2(Bucket=bucket)
    stage.s3.delete_bucket(Bucket=bucket)
    found = stage.run("redis:rows", bucket, repair=True)
    assert lines(found) == dict.fromkeys(keys, "orphaned")
    assert (found.state, found.counts["repaired"]) == ("drift", 0)
    assert f"no bucket dropped at {stage.minio.url}" in found.problem
    assert "12 of 12 rows would be removed" in found.problem
    removed = stage.run("redis:rows", bucket, repair=True, limits=RepairLimits(max_removals=100))
    assert (removed.state, removed.counts["repaired"]) == ("repaired", 12)
    until(lambda: not [path for path in store.all() if path.startswith(f"{bucket}/")], what="no rows")


def test_a_row_stays_whose_object_the_listing_leaves_out(stage: Stage) -> None:
    """MinIO's listing has no object below the path of another one, which it gives to who asks for it."""
    bucket, store = "hidden", stage.stores["redis:rows"]
    stage.s3.create_bucket(Bucket=bucket)
    rule = {"bucket": bucket, "target": "redis:rows", "events": EVENTS}
    assert stage.whole.ask("POST", "/v1/rules", json=rule).status_code < 300
    stage.notify(bucket, on=True)
    for key in ("f/a", "f", "purged/1"):
        stage.put(bucket, key, b"x")
    until(lambda: len([path for path in store.all() if path.startswith(f"{bucket}/")]) == 3, what="the rows")
    stage.minio.mc("rm", "--force", "--purge", f"m/{bucket}/purged/")
    assert [one["Key"] for one in stage.s3.list_objects_v2(Bucket=bucket)["Contents"]] == ["f"]
    found = stage.run("redis:rows", bucket, repair=True)
    assert lines(found) == {"f/a": "orphaned", "purged/1": "orphaned"}
    assert (found.state, found.counts["repaired"]) == ("drift", 1)
    assert "1 row stayed: the storage has the objects when it is asked for each" in found.problem

    def rows() -> list[str]:
        return sorted(path for path in store.all() if path.startswith(f"{bucket}/"))

    until(lambda: rows() == [f"{bucket}/f", f"{bucket}/f/a"], what="the other row to go")
    for key in ("f", "f/a"):
        stage.delete(bucket, key)
    until(lambda: not rows(), what="no rows")


def test_a_repair_below_a_prefix_leaves_every_other_row_as_it_is(stage: Stage) -> None:
    target, bucket, prefix = "redis:rows", BUCKETS["redis:rows"], "part é%/a"
    store, inside, outside = stage.stores[target], ["/1", "/2", "b"], ["part é%/", "part é%/b/1", "part"]
    for key in (*(prefix + end for end in inside), *outside):
        stage.put(bucket, key, key.encode())
    stage.settle(target)
    good = store.all()
    store.set(f"{bucket}/{prefix}/1", None)
    store.set(f"{bucket}/{prefix}/2", good[f"{bucket}/part"])
    store.set(f"{bucket}/{prefix}ghost", {"of": "nobody"})
    store.set(f"{bucket}/part é%/b/1", None)
    store.set(f"{bucket}/part é%/ghost", {"of": "nobody"})
    found = stage.run(target, bucket, repair=True, prefix=prefix)
    assert lines(found) == {f"{prefix}/1": "missing", f"{prefix}/2": "malformed", f"{prefix}ghost": "malformed"}
    assert (found.state, found.counts["objects"], found.counts["target_rows"]) == ("repaired", 3, 3)
    assert found.position is None
    ghost = {f"{bucket}/part é%/ghost": {"of": "nobody"}}
    whole = described({path: row for path, row in good.items() if path != f"{bucket}/part é%/b/1"})
    until(stage.whole.settled, 60, what="everything delivered")
    rows = store.all()
    assert ghost.items() <= rows.items()
    assert described({path: row for path, row in rows.items() if path not in ghost}) == whole
    untouched = {path: row for path, row in good.items() if not path.startswith(f"{bucket}/{prefix}")}
    assert {path: rows[path] for path in untouched if path in rows} == {
        path: row for path, row in untouched.items() if path != f"{bucket}/part é%/b/1"
    }
    assert stage.run(target, bucket, repair=True).counts["repaired"] == 2
    stage.settle(target)


@pytest.mark.nightly(
    "tenants in test_buckets.py, test_limited_tokens.py, test_frontend_order.py; test_bucket_storages.py"
)
def test_two_tenants_with_buckets_of_one_name_share_a_mirror_and_nothing_else(stage: Stage, job: Job) -> None:
    """West's MinIO posts with a token, east's writes into a list of Redis that a source pulls; PostgreSQL is east's."""
    whole, store, only_easts = stage.whole, stage.stores["redis:rows"], stage.stores["postgresql:rows"]
    assert isinstance(store, RedisContents)
    place = f"{services.LOOPBACK}:{store.server.port}"
    made = {"name": "west", "scopes": ["ingest"], "tenant": "west"}
    token = whole.ask("POST", "/v1/tokens", json=made).json()["token"]
    whole.ask("PUT", "/v1/sources/redis/east", json={"address": place, "key": "queue", "tenant": "east"})
    for bucket, target in (("west:both", "redis:rows"), ("east:both", "redis:rows"), ("east:both", "postgresql:rows")):
        whole.ask("POST", "/v1/rules", json={"bucket": bucket, "target": target, "events": EVENTS})
    queue = {"ENABLE": "on", "ADDRESS": place, "KEY": "queue", "FORMAT": "access"}
    with ExitStack() as stack:
        worker = source_worker(whole.settings)
        stack.callback(worker.stop)
        worker.start()
        west = stack.enter_context(services.minio(webhooks={"BW": (f"{whole.api.url}/v1/events", token)}))
        east = stack.enter_context(
            services.minio(extra_env={f"MINIO_NOTIFY_REDIS_{name}_BW": value for name, value in queue.items()})
        )
        clients, paths = {}, set()
        for name, server, kind in (("west", west, "webhook"), ("east", east, "redis")):
            clients[name] = client = server.boto3()
            stack.callback(client.close)
            client.create_bucket(Bucket="both")
            configured = [{"QueueArn": f"arn:minio:sqs::BW:{kind}", "Events": EVENTS}]
            client.put_bucket_notification_configuration(
                Bucket="both", NotificationConfiguration={"QueueConfigurations": configured}
            )
            for key in ("a", "b", "c"):
                client.put_object(Bucket="both", Key=key, Body=name.encode() + key.encode())
                paths.add(f"{name}:both/{key}")

        def held(rows: TargetContents) -> set[str]:
            return {path for path in rows.all() if "both/" in path}

        until(lambda: held(store) == paths, 60, what="the rows of both")
        clients["west"].delete_object(Bucket="both", Key="a")
        clients["east"].delete_object(Bucket="both", Key="b")
        paths -= {"west:both/a", "east:both/b"}
        until(lambda: held(store) == paths, 60, what="each one's deletion")
        until(lambda: held(only_easts) == {"east:both/a", "east:both/c"}, 60, what="the rows of east")
        environment = {**whole.settings, "BUCKETWIRE_TOKEN": ADMIN, "BUCKETWIRE_URL": whole.api.url}
        environment |= {"BUCKETWIRE_SPARK_JARS": str(provision.SPARK_JARS), "AWS_ENDPOINT_URL_S3": stage.minio.url}
        store.set("west:both/b", None)
        store.set("east:both/c", {"Records": store.all()["west:both/c"]["Records"]})
        for name, server in (("west", west), ("east", east)):
            login = [f"endpoint={server.url}", f"access_key={server.access_key}", f"secret_key={server.secret_key}"]
            setting = [BUCKETWIRE, "bucket", "set", f"{name}:both", *login]
            subprocess.run(setting, env=os.environ | environment, check=True, capture_output=True, timeout=60)
            words = [f"{name}:both", "--target", "redis:rows", "--grace", "0s", "--repair", "--max-removals", "9"]
            code, out, error = job(environment, "reconcile", "run", *words, "--json")
            assert code == 0, error
            result = json.loads(out)
            assert result["state"] == "repaired", result
    until(lambda: held(store) == paths, 60, what="the repairs")
    things = {path: row["Records"][0]["s3"] for path, row in store.all().items() if path in paths}
    assert {path: thing["object"]["eTag"] for path, thing in things.items()} == {
        path: hashlib.md5(f"{path[:4]}{path[-1]}".encode(), usedforsecurity=False).hexdigest() for path in paths
    }


def test_a_url_or_token_for_repairs_is_tried_before_anything_is_compared(stage: Stage, job: Job) -> None:
    more = {"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9", "BUCKETWIRE_SPARK_JARS": str(provision.SPARK_JARS)}
    more["BUCKETWIRE_TOKEN"] = ADMIN
    bucketwire = partial(job, {**stage.whole.settings, **more}, "reconcile", "run", "plain", "--target", "redis:rows")
    for url in ("http://127.0.0.1:9", f"{stage.whole.api.url}/elsewhere"):
        code, _, error = bucketwire("--repair", "--url", url)
        assert (code, "bucket cannot be listed" in error) == (1, False), error
        assert url.rpartition(":")[2][:5] in error


def test_the_command_line_exits_with_3_on_drift_only_where_it_checks(stage: Stage, job: Job) -> None:
    more = {"AWS_ENDPOINT_URL_S3": stage.minio.url, "BUCKETWIRE_SPARK_JARS": str(provision.SPARK_JARS)}
    bucketwire = partial(job, {**stage.whole.settings, **more}, "reconcile", "run", "plain")
    code, _, error = bucketwire()
    assert (code, "Missing option '--target'" in error) == (2, True)
    code, _, error = bucketwire("--target", "redis:rows", "--listing", "x")
    assert (code, "belong together" in error) == (2, True)
    code, _, error = bucketwire("--target", "redis:rows", "--inventory", "/nowhere/manifest.json")
    assert (code, error) == (1, "bucketwire: /nowhere/manifest.json cannot be read: No such file or directory\n")
    stage.put("plain", "for the command", b"x")
    stage.settle("postgresql:rows")
    stage.stores["postgresql:rows"].set("plain/for the command", None)
    options = ["--target", "postgresql:rows", "--grace", "0s", "--json"]
    code, out, error = bucketwire(*options, "--check", "--report", str(stage.folder / "mine"))
    assert code == 3, error
    result = json.loads(out)
    assert (result["state"], result["missing"], result["orphaned"]) == ("drift", 1, 0)
    assert Path(result["page"]).is_relative_to(stage.folder / "mine")
    runs = stage.whole.ask("GET", "/v1/reconciliations?limit=1").json()["reconciliations"]
    assert [(run["state"], run["target"], run["missing"]) for run in runs] == [
        ("drift", "arn:minio:sqs::rows:postgresql", 1)
    ]
