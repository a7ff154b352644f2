"""A MinIO that notifies nobody, whole processes, and mirrors in PostgreSQL and Redis that equal the bucket."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import psycopg2.errors
import pytest

from tests import services
from tests.services import until
from tests.support.scripted_store import scripted_store
from tests.support.service_processes import source_worker, system
from tests.support.target_readers import Record, hashed, rows
from tests.support.watched_bucket import values

pytestmark = [pytest.mark.promise, pytest.mark.slow]
BUCKET, SOURCE = "photos", "/v1/sources/bucket/photos"


def etags(found: dict[str, Record]) -> dict[str, str]:
    """A namespace's rows as a listing has them."""
    return {path: record["s3"]["object"]["eTag"] for path, record in found.items()}


def listing(s3: Any) -> dict[str, str]:
    """What the bucket has: path to ETag."""
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
    return {
        f"{BUCKET}/{one['Key']}": one["ETag"].strip('"') for page in pages for one in page.get("Contents", ())
    }  # fmt: skip


@pytest.mark.timeout(300)
def test_mirrors_of_a_bucket_that_sends_nothing_equal_it(postgres_server: services.Postgres) -> None:
    outbox, database = (f"{name}_{uuid4().hex[:12]}" for name in ("outbox", "target"))
    postgres_server.create_database(database)
    with ExitStack() as stack:
        minio, broker, redis = (
            stack.enter_context(start()) for start in (services.minio, services.redis, services.redis)
        )
        s3 = minio.boto3()
        stack.callback(s3.close)
        s3.create_bucket(Bucket=BUCKET)
        whole = stack.enter_context(
            system(postgres_server.create_database(outbox), broker.url, lease_ttl="4s", lease_max_work="3s")
        )
        whole.add_target("redis:rows", address=f"{services.LOOPBACK}:{redis.port}", key="rows")
        whole.add_target("postgresql:rows", connection_string=postgres_server.dsn(database), table="rows")
        for number in range(120):
            s3.put_object(Bucket=BUCKET, Key=f"{number % 4}/ü {number}.txt", Body=str(number).encode())
        worker = source_worker(whole.settings)
        stack.callback(worker.stop)
        worker.start()

        def listings() -> int:
            return int(whole.ask("GET", SOURCE).json()["listing"]["listings"])

        def equal() -> bool:
            there = listing(s3)
            try:
                return etags(hashed(redis, "rows")) == there == etags(rows(postgres_server, database, "rows"))
            except psycopg2.errors.UndefinedTable:  # the target is not opened yet
                return False

        settings = values(minio, BUCKET) | {"grace": "0", "initial": "events", "max_removals": "50"}
        whole.ask("PUT", SOURCE, json=settings)
        until(equal, 60, what="what was there before")
        minio.mc("rm", "--recursive", "--force", f"m/{BUCKET}/3")
        for number in range(0, 40, 4):
            s3.put_object(Bucket=BUCKET, Key=f"0/ü {number}.txt", Body=b"again")
        s3.put_object(Bucket=BUCKET, Key="new.txt", Body=b"new")
        before = listings()
        whole.ask("POST", f"{SOURCE}/resume", json={})
        worker.kill()
        worker.start()
        until(lambda: listings() > before, 60, what="the next listing")
        until(equal, 60, what="what changed without a notification")
        shown = whole.ask("GET", SOURCE).json()
        assert shown["state"] == "running"
        assert (shown["listing"]["created"], shown["listing"]["changed"], shown["listing"]["removed"]) == (121, 10, 30)
        assert shown["counters"]["recorded"] == 161
        key = whole.ask("GET", "/v1/events", params={"bucket": BUCKET, "key": "new.txt"}).json()["events"][0]
        assert key["origin"]["source"] == "bucket:photos"
        for entry in whole.audits():
            assert entry.difference == 0


@pytest.mark.timeout(300)
def test_a_worker_that_was_stopped_within_a_listing_records_nothing_of_it(postgres_server: services.Postgres) -> None:
    """It has listed the bucket and compared; another one lists it meanwhile, and the bucket changes in between."""
    outbox = postgres_server.create_database(f"outbox_{uuid4().hex[:12]}")
    with ExitStack() as stack:
        broker, redis = (stack.enter_context(services.redis()) for _ in range(2))
        store = stack.enter_context(scripted_store())
        whole = stack.enter_context(system(outbox, broker.url, lease_ttl="4s", lease_max_work="3s"))
        whole.add_target("redis:rows", address=f"{services.LOOPBACK}:{redis.port}", key="rows")
        workers = [source_worker(whole.settings) for _ in range(2)]
        for worker in workers:
            stack.callback(worker.stop)

        def listings() -> int:
            return int(whole.ask("GET", "/v1/sources/bucket/images").json()["listing"]["listings"])

        def holds(*keys: str) -> bool:
            return {path: record["s3"]["object"]["eTag"] for path, record in hashed(redis, "rows").items()} == {
                f"images/{key}": store.objects[key][0] for key in keys
            }

        for number in range(1_500):  # two pages
            store.put(f"{number:04}")
        workers[0].start()
        settings = store.settings | {"initial": "events", "max_removals": "100"}
        whole.ask("PUT", "/v1/sources/bucket/images", json=settings)
        until(lambda: holds(*store.objects), 60, what="the first listing")
        store.put("0001", "other")
        store.put("new")
        store.hold()
        whole.ask("POST", "/v1/sources/bucket/images/resume", json={})
        until(store.holding.is_set, 60, what="a listing")
        workers[0].freeze()
        store.let_go()
        store.put("0001", "newest", age=0)
        del store.objects["new"]
        before = listings()
        workers[1].start()
        until(lambda: listings() > before, 60, what="a listing by the other worker")
        until(lambda: holds(*store.objects), 60, what="what the other has found")
        workers[0].thaw()
        until(lambda: "no longer this worker's" in workers[0].said(), 60, what="a worker that has lost its lease")
        before = listings()
        whole.ask("POST", "/v1/sources/bucket/images/resume", json={})
        until(lambda: listings() > before, 60, what="another listing")
        until(lambda: holds(*store.objects), 60, what="the bucket")
        history = {
            key: whole.ask("GET", "/v1/events", params={"bucket": "images", "key": key}).json()["events"]
            for key in ("0001", "new")
        }
        assert (len(history["0001"]), len(history["new"])) == (2, 0)
        for entry in whole.audits():
            assert entry.difference == 0
