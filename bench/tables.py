"""Measure the Iceberg tables: from the log into the journal and the inventory, and a merge into large tables.

    python -m bench.tables [--events 1000000] [--objects 10000000] [--changes 100000] [--together] [--heap 2g]

The outbox is PostgreSQL, Spark is `local[2]`, the warehouse a folder. The first part records events of as many objects
and times each step of one run. The second part fills the tables with objects, records changes of some of them, a tenth
are removals, and times a run again. With `--together` they are of objects in one folder, which has a thousandth of
all. A wrong number of rows ends the measurement.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from app.events.model import Event
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from bench.report import Aim, show
from spark_jobs.iceberg import Warehouse
from spark_jobs.jobs import tables as job
from spark_jobs.jobs.tables import maintain
from spark_jobs.session import session
from tests import provision, services
from tests.support.builders import DELETE, PUT, migrated

BUCKET, WEEK, BATCH_EVENTS, PARTS = "images", 7 * 86_400_000, 5000, 16
FOLDERS = 1000
SECONDS = 90  # the aim for a million events


def key(number: int) -> str:
    return f"some/folder/of/objects/{number % FOLDERS:03}/{number:012}.jpg"


def made(number: int, *, name: str = PUT, serial: int = 0) -> Event:
    """An event as MinIO sends it; `serial` orders the events of a key."""
    sequencer = f"{0x18E9E833E5D35C00 + serial:X}"
    record = {
        "eventVersion": "2.0", "eventSource": "minio:s3", "awsRegion": "", "eventTime": "2026-11-21T00:33:56.082Z",
        "eventName": name, "userIdentity": {"principalId": "minioadmin"},
        "requestParameters": {"principalId": "minioadmin", "region": "", "sourceIPAddress": "127.0.0.1"},
        "responseElements": {"x-amz-id-2": "8d822d64338206a17f15e6cfb6b4ac3c", "x-amz-request-id": f"{serial:016X}"},
        "s3": {
            "s3SchemaVersion": "1.0", "configurationId": "Config", "bucket": {"name": BUCKET},
            "object": {
                "key": key(number), "size": number % 10_000, "eTag": "5eb63bbbe01eeed093cb22bb8f5acdc3",
                "contentType": "image/jpeg", "userMetadata": {"content-type": "image/jpeg"}, "sequencer": sequencer,
            },
        },
        "source": {"host": "127.0.0.1", "port": "", "userAgent": "MinIO (linux; amd64) minio-go/v7.0.88"},
    }  # fmt: skip
    text = orjson.dumps(record).decode()
    return Event(f"{serial:032x}", name, BUCKET, key(number), "", sequencer, 1_795_221_236_082, text)


def record(database: Database, count: int, make: Callable[[int], Event]) -> None:
    log = Log(database)
    for start in range(0, count, BATCH_EVENTS):
        log.append([[make(number) for number in range(start, min(start + BATCH_EVENTS, count))]])


class Steps:
    """The seconds of each step of a run."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        for name in ("_read_log", "_fold_journal", "_follow_versions"):
            setattr(job, name, self._timed(name, getattr(job, name)))

    def _timed(self, name: str, step: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            began = time.perf_counter()
            try:
                return step(*arguments)
            finally:
                self.seconds[name] = self.seconds.get(name, 0) + time.perf_counter() - began

        return timed

    def run(self, tables: job.Tables, database: Database) -> job.UpdateResult:
        self.seconds.clear()
        return job.update(tables, database, WEEK)


def fill(spark: SparkSession, tables: job.Tables, first: int, count: int) -> None:
    """Add objects to the versions and to the inventory, as if their events had been read long ago."""
    number = F.col("id")
    name = F.concat(F.lit("some/folder/of/objects/"), F.lpad((number % FOLDERS).cast("string"), 3, "0"), F.lit("/"))
    place = F.concat(F.lit("18E9E833E5D35C 0 "), F.lpad(F.hex(number), 16, "0"))
    values = {
        "bucket": F.lit(BUCKET), "key": F.concat(name, F.lpad(number.cast("string"), 12, "0"), F.lit(".jpg")),
        "version": F.lit("null"), "created": place, "sequence_number": F.lit("18E9E833E5D35C"),
        "is_delete_marker": F.lit(False), "size": number % 10_000, "is_multipart": F.lit(False),
        "last_modified_date": F.timestamp_millis(F.lit(1_795_221_236_082)), "is_latest": F.lit(True),
        "e_tag": F.lit("5eb63bbbe01eeed093cb22bb8f5acdc3"), "content_type": F.lit("image/jpeg"), "log_position": number,
    }  # fmt: skip
    numbers = spark.range(first, first + count, numPartitions=PARTS)
    for table in (tables.versions, tables.inventory):
        columns = (values.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in table.columns)
        numbers.select(*columns).writeTo(table.name).append()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, default in (("--events", 1_000_000), ("--objects", 10_000_000), ("--changes", 100_000)):
        parser.add_argument(option, type=int, default=default)
    parser.add_argument("--together", action="store_true")
    parser.add_argument("--heap", default="2g")
    options = parser.parse_args()
    folder, rows = services.new_folder("bench-tables"), list[dict[str, Any]]()
    warehouse = Warehouse(str(Path(folder) / "tables"))

    def noted(what: str, count: int, seconds: float) -> None:
        rows.append({"step": what, "rows": f"{count:,}", "s": f"{seconds:.1f}", "rows/s": f"{count / seconds:,.0f}"})

    with (
        services.postgres() as server,
        session(
            "bench", master="local[2]", jars=str(provision.SPARK_JARS), memory=options.heap,
            libraries=warehouse.libraries, more={"spark.local.dir": str(folder)},
        ) as spark,
    ):  # fmt: skip
        database = migrated(server.create_database("bench_tables"))
        record(database, options.events, lambda number: made(number, serial=number + 1))
        warehouse.open(spark)
        tables, steps = job.Tables(spark), Steps()
        assert steps.run(tables, database).events == options.events
        assert tables.inventory.frame().count() == options.events
        first = sum(steps.seconds.values())
        for name, what in (
            ("_read_log", "log into journal"), ("_fold_journal", "merge versions"),
            ("_follow_versions", "merge inventory"),
        ):  # fmt: skip
            noted(what, options.events, steps.seconds[name])
        fill(spark, tables, options.events, options.objects)
        maintain(tables, WEEK)
        total = options.events + options.objects
        every = FOLDERS if options.together else total // options.changes
        record(
            database,
            options.changes,
            lambda number: made(
                number * every, name=PUT if number % 10 else DELETE, serial=options.events + options.objects + number
            ),
        )
        assert steps.run(tables, database).events == options.changes
        assert tables.inventory.frame().count() == total - options.changes // 10
        for name, what in (("_fold_journal", "versions"), ("_follow_versions", "inventory")):
            noted(f"changes into {total:,} {what}", options.changes, steps.seconds[name])
        database.close()
    aim = Aim(
        first * 1_000_000 / options.events, SECONDS, "a million events into journal and inventory", "", "s", most=True
    )
    show("tables", "Iceberg tables on two cores", rows, aims=[aim])


if __name__ == "__main__":
    main()
