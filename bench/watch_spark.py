"""Measure what Spark needs to compare a listing of millions of keys with what is known, and to record the differences.

    python -m bench.watch_spark [--millions 1 10] [--heap 1g]

As in `bench.reconcile` the listing is in Parquet already, as tasks write it: S3's answers take what they take in
`bench.listing`. The outbox is in PostgreSQL on the same machine. The first listing remembers, the second finds nothing,
and in the third one key in a thousand is new, one changed and one removed, each an event. Wrong counts end the run.
"""

import argparse
import os
import shutil
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from app.events.own_events import CLOCK_SKEW
from app.listings.differences import Counts
from bench.reconcile import cpu_seconds, peak, spark_session
from bench.report import show
from tests import services
from tests.support.builders import migrated
from tests.support.pulled_events import count_recorded
from tests.support.watched_bucket import Known

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTERVAL = 1_000  # keys, of which one differs in each way
START = 1_790_000_000_000


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=float, nargs="+", default=[1, 10])
    parser.add_argument("--heap", default="1g", help="heap of the job's JVM")
    options = parser.parse_args()
    table = []
    for millions in options.millions:
        folder, count = services.new_folder("watch"), int(millions * 1e6) // INTERVAL * INTERVAL
        with (
            services.postgres() as postgres,
            closing(migrated(postgres.create_database("outbox"))) as database,
            spark_session(options.heap, folder) as spark,
        ):
            table += measure(spark, Known(database), folder, count)
        shutil.rmtree(folder)
    show("watch_spark", "A watched bucket by Spark: comparison and record", table, "local[2], PostgreSQL beside it")


def measure(spark: "SparkSession", known: Known, folder: Path, count: int) -> list[dict[str, object]]:
    """Return a row of the table for each listing."""
    make(spark, count, folder)
    differing = count // INTERVAL
    same = Counts(objects=count, known=count)
    found = Counts(objects=count, known=count, created=differing, changed=differing, removed=differing)
    return [
        listed(spark, known, folder, "before", "first, remembered", Counts(objects=count), remembers=True),
        listed(spark, known, folder, "before", "nothing changed", same),
        listed(spark, known, folder, "after", "three in a thousand differ", found),
    ]


def make(spark: "SparkSession", count: int, folder: Path) -> None:
    """Write the listings: every key has a folder's name before it, as in a bucket."""
    from spark_jobs.listings.source_listing import SCHEMA

    names = [column.split()[0] for column in SCHEMA.split(", ")]
    told = {
        "key": "printf('photos/2026/%02d/%09d.jpg', id % 100, id)",
        "place": "id",
        "version": "''",
        "size": "1000L",
        "modified": f"{START}L + id",
        "marker": "false",
        "latest": "true",
        "answered": "CAST(NULL AS bigint)",
        "skipped": "CAST(NULL AS bigint)",
        "skipped_key": "CAST(NULL AS string)",
    }
    etags = {"before": "md5(CAST(id AS string))"}
    etags["after"] = f"if(id < {count} AND id % {INTERVAL} = 0, 'changed', {etags['before']})"
    kept = {"before": f"id < {count}", "after": f"id >= {count} OR id % {INTERVAL} != 1"}
    for name, etag in etags.items():
        columns = [f"{(told | {'etag': etag})[column]} AS {column}" for column in names]
        frame = spark.range(count + count // INTERVAL).where(kept[name])
        frame.selectExpr(*columns).write.parquet(str(folder / name))


def listed(
    spark: "SparkSession", known: Known, folder: Path, listing: str, name: str, expected: Counts, *,
    remembers: bool = False,
) -> dict[str, object]:  # fmt: skip
    """Compare a listing and record what it finds."""
    from spark_jobs.folders import Folder
    from spark_jobs.jobs import watched_bucket as job
    from spark_jobs.listings.source_listing import SCHEMA, summed_up
    from spark_jobs.reports import write_parquet

    java = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]  # the session is not Spark Connect
    load, events = os.getloadavg()[0], count_recorded(known.database)
    own, started, cpu = time.process_time(), time.perf_counter(), _cpu(java)
    rows = spark.read.schema(SCHEMA).parquet(str(folder / listing))
    now = START + 10**12 + CLOCK_SKEW
    run = known.run(None, now, remembers=remembers)
    decided = Folder.of(folder / f"decided-{name}")
    decisions = job.decide(spark, known.database, known.lease, known.watched, summed_up(rows), None, run, most=500)
    decisions = write_parquet(decisions, decided)
    counts = job.counts_of(decisions)
    compared = time.perf_counter() - started
    for replacement in job.replacements(decisions, parts=decided.size() // (16 << 20) + 1):
        known.watched.replace(known.lease, replacement, run)
    seconds = time.perf_counter() - started
    recorded = count_recorded(known.database) - events
    if counts != expected or recorded != expected.created + expected.changed + expected.removed:
        raise SystemExit(f"{name}: found {counts} and recorded {recorded} events, expected {expected}")
    children = psutil.Process(java).children(recursive=True)
    workers = [child for child in children if child.status() != psutil.STATUS_ZOMBIE]
    row = {
        "listing": name,
        "keys, millions": expected.objects / 1e6,
        "s": seconds,
        "compared, s": compared,
        "CPU, µs/key": (_cpu(java) - cpu + time.process_time() - own) / expected.objects * 1e6,
        "JVM, MB": peak(java),
        "Python, MB": peak() + sum(peak(worker.pid) for worker in workers),
        "events": recorded,
        "load before": load,
    }
    print(row, flush=True)
    return row


def _cpu(java: int) -> float:
    return cpu_seconds(java) + sum(cpu_seconds(child.pid) for child in psutil.Process(java).children(recursive=True))


if __name__ == "__main__":
    main()
