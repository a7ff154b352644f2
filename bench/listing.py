"""Measure the listing of a bucket by S3, as a reconciliation does it, beside what the server itself can list.

    python -m bench.listing [--objects 200000] [--lock FILE]

A real MinIO holds the objects, of one byte each, in twelve folders. Its own limit is the rate at which it answers the
requests for all pages, whose first keys are known, while so many are in flight; nobody reads the answers. Then the job
lists the bucket with one process for each core, and so many requests in flight; once to warm up. At last it reads
reports of S3 Inventory with the same keys from the same MinIO instead, as a watched bucket does, too.
"""

import argparse
import io
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import urllib3
from minio.commonconfig import SnowballObject

from app.listings import inventory
from bench.reconcile import spark_session
from bench.report import show
from bench.turns import turn
from tests import services
from tests.support.inventories import report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


def report_of(spark: "SparkSession", minio: services.MinIO, count: int, kind: str) -> str:
    """Write a report with the keys and bring it to MinIO; return where it is."""
    folder, place = services.new_folder("report"), f"reports-{kind.lower()}"
    columns = {
        "bucket": f"'{BUCKET}'", "key": "printf('data/2026/%02d/part-%012d.parquet', id % 12, id)", "size": "1L",
        "last_modified_date": "timestamp_millis(1794992800000 + id)", "e_tag": "md5(CAST(id AS string))",
        "storage_class": "'STANDARD'", "is_multipart_uploaded": "false",
    }  # fmt: skip
    frame = spark.range(count).repartition(4).selectExpr(*(f"{value} AS {name}" for name, value in columns.items()))
    options = {"compression": "gzip", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"} if kind == "CSV" else {}
    frame.write.format(kind.lower()).options(**options).save(str(folder / "files"))
    contents = [path.read_bytes() for path in (folder / "files").glob("part-*")]
    made = report(folder, BUCKET, kind, contents, versioned=False)
    client = minio.client()
    client.make_bucket(place)
    for file in (*made.files, made.manifest, made.manifest.with_name("manifest.checksum")):
        client.fput_object(place, str(file.relative_to(folder)), str(file))
    return f"s3://{place}/{made.manifest.relative_to(folder)}"


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
        from spark_jobs.listings.inventory import listing_of

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
        for kind in ("CSV", "ORC", "Parquet"):
            place = report_of(spark, minio, count, kind)

            def read(place: str = place) -> None:
                found = inventory.manifest(place, lambda name: replace(bucket, name=name).client())
                if listing_of(spark, found, BUCKET, lambda name: replace(bucket, name=name)).frame.count() != count:
                    raise SystemExit("not every object was read")

            read()
            add(f"a report in {kind}", cores, timed(read))
    show("listing", "Listing a bucket by S3", table, f"{count:,} objects of one byte; {cores} cores")


if __name__ == "__main__":
    main()
