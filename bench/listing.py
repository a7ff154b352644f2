"""Measure the listing of a bucket by S3, as a reconciliation does it, beside what the server itself can list.

    python -m bench.listing [--objects 200000] [--lock FILE]

A real MinIO holds the objects, of one byte each, in twelve folders. Its own limit is the rate at which it answers the
requests for all pages, whose first keys are known, while so many are in flight; nobody reads the answers. Then the job
lists the bucket with one process for each core, and so many requests in flight; once to warm up.
"""

import argparse
import io
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import islice
from typing import Any

import urllib3
from minio.commonconfig import SnowballObject

from bench.reconcile import spark_session
from bench.report import show
from bench.turns import turn
from tests import services

BUCKET = "bench"
_PAGE = 1000  # keys in an answer
_BATCH = 10_000  # objects in a request that MinIO unpacks


def keys(count: int) -> list[str]:
    """Return the keys in the order of a listing."""
    return sorted(f"data/2026/{number % 12:02}/part-{number:012}.parquet" for number in range(count))


def fill(minio: services.MinIO, names: Sequence[str]) -> None:
    client = minio.client()
    client.make_bucket(BUCKET)
    remaining: Iterator[SnowballObject] = (SnowballObject(name, data=io.BytesIO(b"x"), length=1) for name in names)
    while batch := list(islice(remaining, _BATCH)):
        client.upload_snowball_objects(BUCKET, batch)


def answers(client: Any, names: Sequence[str], in_flight: int) -> None:
    """Request every page, so many at a time, and read the answers without looking at them."""
    starts = ["", *names[_PAGE - 1 :: _PAGE]]
    urls = [
        client.generate_presigned_url("list_objects_v2", Params={"Bucket": BUCKET, "StartAfter": start})
        for start in starts
    ]
    with urllib3.PoolManager(maxsize=in_flight) as pool, ThreadPoolExecutor(in_flight) as threads:
        statuses = set(threads.map(lambda url: pool.request("GET", url).status, urls))
    if statuses != {200}:
        raise SystemExit(f"the server answered {statuses}")


def timed(action: Callable[[], Any]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, default=200_000)
    parser.add_argument("--lock", default="", metavar="FILE", help="measure in turns, at real-time priority")
    options = parser.parse_args()
    count = options.objects
    names, table = keys(count), list[dict[str, Any]]()

    def add(what: str, in_flight: int, seconds: float) -> None:
        table.append({"what": what, "requests in flight": in_flight, "keys/s": count / seconds})
        print(table[-1], flush=True)

    with (
        services.minio() as minio, spark_session("1g", services.new_folder("listing")) as spark, ExitStack() as stack
    ):  # fmt: skip
        from spark_jobs.listings import s3_listing

        fill(minio, names)
        stack.enter_context(turn(options.lock))
        s3 = minio.boto3(signature_version="s3v4")  # botocore signs URLs by version 2 if it is not told
        for in_flight in (1, 2, 4):
            add("MinIO's answers, unread", in_flight, timed(partial(answers, s3, names, in_flight)))
        s3.close()
        cores = spark.sparkContext.defaultParallelism
        login = (minio.access_key, minio.secret_key, None)
        bucket = s3_listing.Bucket(BUCKET, minio.url, login=login)
        for versioned in (False, True):

            def listed(versioned: bool = versioned) -> None:
                ranges = s3_listing.divided(bucket, sample=names[::50], tasks=2 * cores)
                frame = s3_listing.listing(spark, bucket, ranges, versioned=versioned).frame
                if frame.count() != count:
                    raise SystemExit("not every object was listed")

            listed()
            what = "the job, versions" if versioned else "the job"
            add(what, cores, timed(listed))
    show("listing", "Listing a bucket by S3", table, f"{count:,} objects of one byte; {cores} cores")


if __name__ == "__main__":
    main()
