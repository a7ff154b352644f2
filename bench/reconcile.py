"""Measure the time per key and the memory of a reconciliation, beside single processes without Spark.

    python -m bench.reconcile [--millions 1 5 10] [--heap 1g]

Spark creates a listing and the rows of a target, both as Parquet, with a known number of differences of every kind; the
rows are copied to a PostgreSQL, too. Each measurement is a separate process: the job as `bucketwire reconcile` runs it
on `local[2]` against PostgreSQL; the same steps with the rows from Parquet; a full outer join by pandas and one by
pyarrow (`pip install pandas pyarrow`, skipped where they are not installed); and a merge of two sorted listings, as in
`rclone check`. The last three compare ETags and sizes only. A measurement with wrong counts ends the run.
"""

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from app.config.arn import TargetId
from app.outbox.engine.database import now_ms
from bench.report import show
from tests import provision, services
from tests.support.builders import add_target, migrated, registry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BUCKET, TARGET = "bench", TargetId("postgresql", "rows")
DRIFT_INTERVAL = 1000  # one key in so many differs, for each kind
KINDS = ("missing", "stale", "orphaned", "malformed")
FIRST_MODIFIED = 1_790_000_000_000  # ms; the last object is a day younger
LISTING, ROWS, COPIED, SORTED = "listing.parquet", "rows.parquet", "rows.copy", "sorted-{}"


def make(spark: "SparkSession", count: int, folder: Path) -> None:
    """Write the listing and the rows of `count` keys of 64 bytes, in the formats of every measurement."""
    from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

    from spark_jobs.schemas import ROWS as ROWS_SCHEMA

    number, kind = F.col("id"), F.col("id") % DRIFT_INTERVAL
    at = F.timestamp_millis(F.lit(FIRST_MODIFIED) + number % 86_400_000)
    key = F.format_string(
        "data/2026/%02d/%s/part-%012d.parquet",
        number % 12 + 1,
        F.substring(F.md5(number.cast("string")), 1, 24),
        number,
    )
    objects = spark.range(count).select(
        "id", kind.alias("kind"), key.alias("key"), F.md5(F.concat(F.lit("e"), number)).alias("etag"),
        (number * 37 % 1_000_000_000).alias("size"), at.alias("at"),
    )  # fmt: skip
    listing = objects.where("kind != 2").select(
        "key", "size", F.col("etag").alias("e_tag"), F.col("at").alias("last_modified_date")
    )
    listing.write.parquet(str(folder / LISTING))

    def sound(column: Any) -> Any:
        return F.when(F.col("kind") != 3, column)

    time_ = F.date_format("at", "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")
    existing = objects.where("kind != 0").withColumn(
        "etag", F.when(F.col("kind") == 1, F.reverse("etag")).otherwise(F.col("etag"))
    )
    rows = existing.select(
        "key", sound(F.lit("s3:ObjectCreated:Put")).alias("name"), sound(F.lit(BUCKET)).alias("bucket"),
        sound(F.replace("key", F.lit("/"), F.lit("%2F"))).alias("object"), sound(F.col("etag")).alias("etag"),
        sound(F.col("size").cast("string")).alias("size"), sound(F.lit("")).alias("version"),
        sound(F.upper(F.hex(F.col("id") + (1 << 60)))).alias("sequencer"), sound(time_).alias("time"),
    )  # fmt: skip
    rows.select(*ROWS_SCHEMA.names).write.parquet(str(folder / ROWS))
    s3_object = F.struct(
        F.col("object").alias("key"), F.col("etag").alias("eTag"), F.col("size").cast("bigint").alias("size"),
        F.lit("application/octet-stream").alias("contentType"), "sequencer",
    )  # fmt: skip
    record = F.struct(
        F.lit("2.0").alias("eventVersion"), F.lit("minio:s3").alias("eventSource"), F.col("time").alias("eventTime"),
        F.col("name").alias("eventName"),
        F.struct(F.struct(F.col("bucket").alias("name")).alias("bucket"), s3_object.alias("object")).alias("s3"),
    )  # fmt: skip
    document = F.to_json(F.struct(F.array(record).alias("Records")))
    document = F.when(F.col("name").isNull(), '{"Records":[]}').otherwise(document)
    copied = spark.read.parquet(str(folder / ROWS)).select(
        F.concat_ws("\t", F.concat(F.lit(f"{BUCKET}/"), "key"), document)
    )
    copied.write.text(str(folder / COPIED))
    for name, etag in ((LISTING, "e_tag"), (ROWS, "etag")):
        entries = spark.read.parquet(str(folder / name)).orderBy("key")
        lines = entries.select(
            F.concat_ws("\t", "key", F.coalesce(etag, F.lit("")), F.coalesce(F.col("size").cast("string"), F.lit("")))
        )
        lines.write.text(str(folder / SORTED.format(name)))


def fill(server: services.Postgres, database: str, folder: Path) -> None:
    """Copy the rows to a table as the target creates it."""
    with server.connection(database) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE rows (key varchar, value jsonb)")
        for part in parts(folder / COPIED):
            with part.open("rb") as lines:
                cursor.copy_expert("COPY rows FROM STDIN", lines)
        cursor.execute("ALTER TABLE rows ADD PRIMARY KEY (key)")
        connection.commit()
        connection.autocommit = True
        cursor.execute("VACUUM ANALYZE rows")
    shutil.rmtree(folder / COPIED)


def parts(folder: Path) -> list[Path]:
    """Return the files that Spark wrote, in order."""
    return sorted(folder.glob("part-*"))


@contextmanager
def spark_session(heap: str, folder: Path) -> Iterator["SparkSession"]:
    """Open the job's session with two cores and a heap of exactly that size."""
    from spark_jobs.session import session

    more = {"spark.local.dir": str(folder / "spark"), "spark.driver.extraJavaOptions": f"-Xms{heap}"}
    with session("bench", master="local[2]", jars=str(provision.SPARK_JARS), memory=heap, more=more) as spark:
        yield spark


def job(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run `bucketwire reconcile` in an open session."""
    from spark_jobs.api_client import Api
    from spark_jobs.jobs.reconcile import ReconcileConfig, reconcile

    database = migrated(f"sqlite:///{folder}/outbox.db")
    values = {"connection_string": options.dsn, "table": "rows"}
    add_target(database, TARGET.name, type_name=TARGET.type, values=values, bucket=BUCKET)
    config = ReconcileConfig(
        bucket=BUCKET, target=TARGET, folder=folder / "reports", listing=str(folder / LISTING), listed_at=now_ms(),
        arrival=0.0,
    )  # fmt: skip

    def run(spark: "SparkSession") -> Mapping[str, int]:
        result = reconcile(spark, database, registry(database), config, Api("http://127.0.0.1:9"))
        return result.counts

    try:
        return with_spark(run, folder, options)
    finally:
        database.close()
        shutil.rmtree(folder / "reports", ignore_errors=True)
        (folder / "outbox.db").unlink()


def steps(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run the steps of the job with the rows from Parquet, which no target has."""
    from pyspark import StorageLevel

    from app.rules.model import Rule
    from spark_jobs.jobs.drift import count_findings, find_drift, namespace
    from spark_jobs.listings.listing import from_parquet
    from spark_jobs.reports.report import write_findings

    rule = Rule(bucket=BUCKET, events=("*",), prefix="", suffix="", target=TARGET)

    def persisted(frame: "DataFrame") -> tuple["DataFrame", int]:
        frame = frame.persist(StorageLevel.DISK_ONLY)
        return frame, frame.count()

    def run(spark: "SparkSession") -> Mapping[str, int]:
        rows, target_rows = persisted(namespace(spark.read.parquet(str(folder / ROWS)), BUCKET))
        listing = from_parquet(spark, str(folder / LISTING), versioned=False)
        listed, objects = persisted(listing.frame)
        findings = find_drift(
            listed, rows, spark.createDataFrame([], "key string"), bucket=BUCKET, rules=[rule], policy="mirror",
            versioned=False, young=now_ms(), keys=max(objects, target_rows),
        )  # fmt: skip
        (folder / "findings").mkdir()
        return count_findings(write_findings(findings, folder / "findings")) | {
            "objects": objects, "target_rows": target_rows, "unreadable": listing.unreadable_count,
        }  # fmt: skip

    try:
        return with_spark(run, folder, options)
    finally:
        shutil.rmtree(folder / "findings", ignore_errors=True)


def with_spark(
    run: Callable[["SparkSession"], Mapping[str, int]], folder: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """Time a run in a warm session, with the peak memory of Python and Java."""
    with spark_session(options.heap, folder) as spark:
        spark.range(1000).selectExpr("sum(id)").collect()
        java = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]  # the session is not Spark Connect
        before, stop = cpu_seconds(java), stopwatch()
        counts = run(spark)
        result = stop(dict(counts))
        return result | {"cpu": result["cpu"] + cpu_seconds(java) - before, "java": peak(java)}


def by_pandas(folder: Path, _: argparse.Namespace) -> dict[str, Any]:
    import pandas as pd

    stop = stopwatch()
    listing = pd.read_parquet(folder / LISTING, columns=["key", "e_tag", "size"])
    rows = pd.read_parquet(folder / ROWS, columns=["key", "etag", "size"])
    rows["row_size"] = pd.to_numeric(rows.pop("size"))
    both = listing.merge(rows, on="key", how="outer", indicator="side")
    matched = both["side"] == "both"
    malformed = (both["side"] != "left_only") & both["etag"].isna()
    differs = (both["e_tag"] != both["etag"]) | (both["size"] != both["row_size"])
    counts = {
        "missing": int((both["side"] == "left_only").sum()),
        "orphaned": int(((both["side"] == "right_only") & ~malformed).sum()),
        "malformed": int(malformed.sum()),
        "stale": int((matched & ~malformed & differs).sum()),
    }
    return stop(counts)


def by_pyarrow(folder: Path, _: argparse.Namespace) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    stop = stopwatch()
    listing = pq.read_table(folder / LISTING, columns=["key", "e_tag", "size"])
    rows = pq.read_table(folder / ROWS, columns=["key", "etag", "size"])
    rows = rows.append_column("row_key", rows["key"])
    rows = rows.append_column("row_size", pc.cast(rows["size"], pa.int64())).drop_columns(["size"])
    listing = listing.append_column("listed", listing["key"])
    both = listing.join(rows, "key", join_type="full outer")
    here, there = pc.is_valid(both["listed"]), pc.is_valid(both["row_key"])
    malformed = pc.and_(there, pc.is_null(both["etag"]))
    sound = pc.and_not(there, malformed)
    differs = pc.or_(pc.not_equal(both["e_tag"], both["etag"]), pc.not_equal(both["size"], both["row_size"]))
    masks = {
        "missing": pc.and_not(here, there),
        "orphaned": pc.and_not(sound, here),
        "malformed": malformed,
        "stale": pc.and_(pc.and_(here, sound), pc.fill_null(differs, fill_value=False)),
    }
    counts = {kind: pc.sum(mask).as_py() for kind, mask in masks.items()}
    return stop(counts)


def by_merge(folder: Path, _: argparse.Namespace) -> dict[str, Any]:
    """Read both sorted listings once, in constant memory."""

    def entries(name: str) -> Iterator[list[bytes]]:
        for part in parts(folder / SORTED.format(name)):
            with part.open("rb") as lines:
                for line in lines:
                    yield line[:-1].split(b"\t")

    stop = stopwatch()
    counts = dict.fromkeys(KINDS, 0)
    listing, rows = entries(LISTING), entries(ROWS)
    entry, row = next(listing, None), next(rows, None)
    while entry or row:
        if row is None or (entry is not None and entry[0] < row[0]):
            counts["missing"] += 1
            entry = next(listing, None)
            continue
        if not row[1]:
            counts["malformed"] += 1
        elif entry is None or row[0] < entry[0]:
            counts["orphaned"] += 1
        elif entry != row:
            counts["stale"] += 1
        if entry is not None and entry[0] == row[0]:
            entry = next(listing, None)
        row = next(rows, None)
    return stop(counts)


METHODS: dict[str, tuple[str, Callable[[Path, argparse.Namespace], dict[str, Any]]]] = {
    "postgresql": ("Spark, rows in PostgreSQL", job),
    "parquet": ("Spark, rows in Parquet", steps),
    "pandas": ("pandas, one process", by_pandas),
    "pyarrow": ("pyarrow, one process", by_pyarrow),
    "merge": ("merge of two sorted listings", by_merge),
}


def stopwatch() -> Callable[[dict[str, int]], dict[str, Any]]:
    """Return a function that returns the counts, with the time, the CPU time and the memory of this process."""
    started, cpu = time.perf_counter(), time.process_time()
    return lambda counts: {
        "counts": counts,
        "seconds": time.perf_counter() - started,
        "cpu": time.process_time() - cpu,
        "python": peak(),
    }


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of another process."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def peak(pid: int | str = "self") -> int:
    """Return the peak memory (MB) of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) // 1024


def measure(method: str, count: int, folder: Path, options: argparse.Namespace, dsn: str) -> dict[str, Any]:
    """Measure in a separate process; return a row of the table. Ends the run if the counts are wrong."""
    load = os.getloadavg()[0]
    argv = ["--method", method, "--folder", str(folder), "--heap", options.heap, "--dsn", dsn]
    result = run_in_process(argv)
    expected = dict.fromkeys(KINDS, count // DRIFT_INTERVAL)
    counts = {kind: result["counts"][kind] for kind in KINDS}
    if counts != expected:
        raise SystemExit(f"{method} found {counts}, expected {expected}")
    return {
        "method": METHODS[method][0],
        "keys, millions": count / 1e6,
        "s": result["seconds"],
        "µs/key": result["seconds"] / count * 1e6,
        "JVM, MB": result.get("java", 0),
        "Python, MB": result["python"],
        "CPU, µs/key": result["cpu"] / count * 1e6,
        "load before": load,
    }


def run_in_process(argv: list[str]) -> dict[str, Any]:
    """Run this module in a separate process and return its result."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.reconcile", *argv], stdout=subprocess.PIPE, check=True, text=True
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=float, nargs="+", default=[1, 5, 10], help="sizes, in millions of keys")
    parser.add_argument("--heap", default="1g", help="heap of the job's JVM")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), help="what to measure")
    for hidden in ("--method", "--folder", "--dsn", "--make"):
        parser.add_argument(hidden, default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make:
        with spark_session("2g", Path(options.folder)) as spark:
            make(spark, int(options.make), Path(options.folder))
        print("{}")
        return
    if options.method:
        print(json.dumps(METHODS[options.method][1](Path(options.folder), options)))
        return
    methods = [
        method for method in options.methods if method not in ("pandas", "pyarrow") or importlib.util.find_spec(method)
    ]
    table = []
    with ExitStack() as stack:
        server = stack.enter_context(services.postgres())
        for millions in options.millions:
            count = int(millions * 1e6) // DRIFT_INTERVAL * DRIFT_INTERVAL
            folder, database = services.new_folder("reconcile"), f"rows_{count}"
            run_in_process(["--make", str(count), "--folder", str(folder)])
            server.create_database(database)
            if "postgresql" in methods:
                fill(server, database, folder)
            for method in methods:
                table.append(measure(method, count, folder, options, server.dsn(database)))
                print(table[-1], flush=True)
            shutil.rmtree(folder)
            with server.connection("postgres") as connection, connection.cursor() as cursor:
                connection.rollback()
                connection.autocommit = True
                cursor.execute(f"DROP DATABASE {database}")
    note = (
        f"heap {options.heap}, local[2]; one key in {DRIFT_INTERVAL} differs for each of {len(KINDS)} kinds; "
        "every difference was found"
    )
    show("reconcile", "Reconciliation of a listing in Parquet", table, note)


if __name__ == "__main__":
    main()
