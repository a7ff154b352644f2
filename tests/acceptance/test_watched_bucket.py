"""A MinIO that notifies nobody, whole processes, and mirrors in PostgreSQL and Redis that equal the bucket."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import psycopg2.errors
import pytest

from tests import services
from tests.services import until
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
