"""What a reconciliation costs for each key, and what it takes of memory, beside what one process does without Spark.

    python -m bench.reconcile [--millions 1 5 10] [--heap 1g]

Spark makes a listing and the rows of a target, both as Parquet, with a known number of differences of every kind; the
rows are copied into a PostgreSQL, too. Each measurement is a process of its own: the job as `bucketwire reconcile` runs
it on `local[2]` against PostgreSQL; the same steps with the rows from Parquet; a full outer join by pandas and one by
pyarrow (`pip install pandas pyarrow`, left out where they are not installed); and `rclone check`'s way, a merge of two
listings that are in order already. The last three compare ETags and sizes and nothing else. A measurement whose counts
are not exactly those that were made ends the run.
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
SHARE = 1000  # one key in so many differs, of each kind
KINDS = ("missing", "stale", "orphaned", "malformed")
WRITTEN = 1_790_000_000_000  # ms; the last of the objects is a day younger
LISTING, ROWS, COPIED, SORTED = "listing.parquet", "rows.parquet", "rows.copy", "sorted-{}"


def make(spark: "SparkSession", count: int, folder: Path) -> None:
    """The listing and the rows of `count` keys of 64 bytes, and both again as the peers want them."""
    from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

    from spark_jobs.schemas import ROWS as MEMBERS

    number, kind = F.col("id"), F.col("id") % SHARE
    at = F.timestamp_millis(F.lit(WRITTEN) + number % 86_400_000)
    key = F.format_string(
        "data/2026/%02d/%s/part-%012d.parquet",
        number % 12 + 1,
        F.substring(F.md5(number.cast("string")), 1, 24),
        number,
    )
    things = spark.range(count).select(
        "id", kind.alias("kind"), key.alias("key"), F.md5(F.concat(F.lit("e"), number)).alias("etag"),
        (number * 37 % 1_000_000_000).alias("size"), at.alias("at"),
    )  # fmt: skip
    listing = things.where("kind != 2").select(
        "key", "size", F.col("etag").alias("e_tag"), F.col("at").alias("last_modified_date")
    )
    listing.write.parquet(str(folder / LISTING))

    def told(column: Any) -> Any:
        return F.when(F.col("kind") != 3, column)

    time_ = F.date_format("at", "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")
    held = things.where("kind != 0").withColumn(
        "etag", F.when(F.col("kind") == 1, F.reverse("etag")).otherwise(F.col("etag"))
    )
    rows = held.select(
        "key", told(F.lit("s3:ObjectCreated:Put")).alias("name"), told(F.lit(BUCKET)).alias("bucket"),
        told(F.replace("key", F.lit("/"), F.lit("%2F"))).alias("object"), told(F.col("etag")).alias("etag"),
        told(F.col("size").cast("string")).alias("size"), told(F.lit("")).alias("version"),
        told(F.upper(F.hex(F.col("id") + (1 << 60)))).alias("sequencer"), told(time_).alias("time"),
    )  # fmt: skip
    rows.select(*MEMBERS.names).write.parquet(str(folder / ROWS))
    thing = F.struct(
        F.col("object").alias("key"), F.col("etag").alias("eTag"), F.col("size").cast("bigint").alias("size"),
        F.lit("application/octet-stream").alias("contentType"), "sequencer",
    )  # fmt: skip
    record = F.struct(
        F.lit("2.0").alias("eventVersion"), F.lit("minio:s3").alias("eventSource"), F.col("time").alias("eventTime"),
        F.col("name").alias("eventName"),
        F.struct(F.struct(F.col("bucket").alias("name")).alias("bucket"), thing.alias("object")).alias("s3"),
    )  # fmt: skip
    document = F.to_json(F.struct(F.array(record).alias("Records")))
    document = F.when(F.col("name").isNull(), '{"Records":[]}').otherwise(document)
    copied = spark.read.parquet(str(folder / ROWS)).select(
        F.concat_ws("\t", F.concat(F.lit(f"{BUCKET}/"), "key"), document)
    )
    copied.write.text(str(folder / COPIED))
    for name, etag in ((LISTING, "e_tag"), (ROWS, "etag")):
        found = spark.read.parquet(str(folder / name)).orderBy("key")
        lines = found.select(
            F.concat_ws("\t", "key", F.coalesce(etag, F.lit("")), F.coalesce(F.col("size").cast("string"), F.lit("")))
        )
        lines.write.text(str(folder / SORTED.format(name)))


def fill(server: services.Postgres, database: str, folder: Path) -> None:
    """The rows into a table as the target makes it."""
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
    """The files that Spark wrote there, in their order."""
    return sorted(folder.glob("part-*"))


@contextmanager
def spark_session(heap: str, folder: Path) -> Iterator["SparkSession"]:
    """The job's session with two processors and a heap of just that size."""
    from spark_jobs.session import session

    more = {"spark.local.dir": str(folder / "spark"), "spark.driver.extraJavaOptions": f"-Xms{heap}"}
    with session("bench", master="local[2]", jars=str(provision.SPARK_JARS), memory=heap, more=more) as made:
        yield made


def job(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """`bucketwire reconcile` with a session that is there already."""
    from spark_jobs.api_client import Api
    from spark_jobs.jobs.reconcile import ReconcileConfig, reconcile

    database = migrated(f"sqlite:///{folder}/outbox.db")
    values = {"connection_string": options.dsn, "table": "rows"}
    add_target(database, TARGET.name, type_name=TARGET.type, values=values, bucket=BUCKET)
    wanted = ReconcileConfig(
        bucket=BUCKET, target=TARGET, folder=folder / "reports", listing=str(folder / LISTING), listed_at=now_ms(),
        arrival=0.0,
    )  # fmt: skip

    def run(spark: "SparkSession") -> Mapping[str, int]:
        result = reconcile(spark, database, registry(database), wanted, Api("http://127.0.0.1:9"))
        return result.counts

    try:
        return with_spark(run, folder, options)
    finally:
        database.close()
        shutil.rmtree(folder / "reports", ignore_errors=True)
        (folder / "outbox.db").unlink()


def steps(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """What the job does, with the rows from Parquet, which no target has."""
    from pyspark import StorageLevel

    from app.rules.model import Rule
    from spark_jobs.jobs.drift import counts, drift, namespace
    from spark_jobs.listings.listing import from_parquet
    from spark_jobs.reports.report import write_findings

    rule = Rule(bucket=BUCKET, events=("*",), prefix="", suffix="", target=TARGET)

    def kept(frame: "DataFrame") -> tuple["DataFrame", int]:
        frame = frame.persist(StorageLevel.DISK_ONLY)
        return frame, frame.count()

    def run(spark: "SparkSession") -> Mapping[str, int]:
        rows, held = kept(namespace(spark.read.parquet(str(folder / ROWS)), BUCKET))
        listing = from_parquet(spark, str(folder / LISTING), versioned=False)
        listed, objects = kept(listing.frame)
        found = drift(
            listed, rows, spark.createDataFrame([], "key string"), bucket=BUCKET, rules=[rule], policy="mirror",
            versioned=False, young=now_ms(), keys=max(objects, held),
        )  # fmt: skip
        (folder / "findings").mkdir()
        return counts(write_findings(found, folder / "findings")) | {
            "objects": objects, "held": held, "bad": listing.bad_count,
        }  # fmt: skip

    try:
        return with_spark(run, folder, options)
    finally:
        shutil.rmtree(folder / "findings", ignore_errors=True)


def with_spark(
    run: Callable[["SparkSession"], Mapping[str, int]], folder: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """Time it in a session that has done something before; what it and its Java took at most."""
    with spark_session(options.heap, folder) as spark:
        spark.range(1000).selectExpr("sum(id)").collect()
        java = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]  # there is one: it is not Connect
        before, took = used(java), stopwatch()
        found = run(spark)
        told = took(dict(found))
        return told | {"processor": told["processor"] + used(java) - before, "java": peak(java)}


def by_pandas(folder: Path, _: argparse.Namespace) -> dict[str, Any]:
    import pandas as pd

    took = stopwatch()
    listing = pd.read_parquet(folder / LISTING, columns=["key", "e_tag", "size"])
    rows = pd.read_parquet(folder / ROWS, columns=["key", "etag", "size"])
    rows["row_size"] = pd.to_numeric(rows.pop("size"))
    both = listing.merge(rows, on="key", how="outer", indicator="side")
    matched = both["side"] == "both"
    malformed = (both["side"] != "left_only") & both["etag"].isna()
    differs = (both["e_tag"] != both["etag"]) | (both["size"] != both["row_size"])
    found = {
        "missing": int((both["side"] == "left_only").sum()),
        "orphaned": int(((both["side"] == "right_only") & ~malformed).sum()),
        "malformed": int(malformed.sum()),
        "stale": int((matched & ~malformed & differs).sum()),
    }
    return took(found)


def by_pyarrow(folder: Path, _: argparse.Namespace) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    took = stopwatch()
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
    found = {
        "missing": pc.and_not(here, there),
        "orphaned": pc.and_not(sound, here),
        "malformed": malformed,
        "stale": pc.and_(pc.and_(here, sound), pc.fill_null(differs, fill_value=False)),
    }
    counted = {kind: pc.sum(mask).as_py() for kind, mask in found.items()}
    return took(counted)


def by_merge(folder: Path, _: argparse.Namespace) -> dict[str, Any]:
    """Both listings go past once, in order; nothing is kept."""

    def entries(name: str) -> Iterator[list[bytes]]:
        for part in parts(folder / SORTED.format(name)):
            with part.open("rb") as lines:
                for line in lines:
                    yield line[:-1].split(b"\t")

    took = stopwatch()
    found = dict.fromkeys(KINDS, 0)
    listing, rows = entries(LISTING), entries(ROWS)
    one, other = next(listing, None), next(rows, None)
    while one or other:
        if other is None or (one is not None and one[0] < other[0]):
            found["missing"] += 1
            one = next(listing, None)
            continue
        if not other[1]:
            found["malformed"] += 1
        elif one is None or other[0] < one[0]:
            found["orphaned"] += 1
        elif one != other:
            found["stale"] += 1
        if one is not None and one[0] == other[0]:
            one = next(listing, None)
        other = next(rows, None)
    return took(found)


WAYS: dict[str, tuple[str, Callable[[Path, argparse.Namespace], dict[str, Any]]]] = {
    "postgresql": ("Spark, rows in PostgreSQL", job),
    "parquet": ("Spark, rows in Parquet", steps),
    "pandas": ("pandas, one process", by_pandas),
    "pyarrow": ("pyarrow, one process", by_pyarrow),
    "merge": ("merge of two sorted listings", by_merge),
}


def stopwatch() -> Callable[[dict[str, int]], dict[str, Any]]:
    """Call it at the end: what was found, and what it took of time, of the processor and of memory (here alone)."""
    started, busy = time.perf_counter(), time.process_time()
    return lambda found: {
        "found": found,
        "seconds": time.perf_counter() - started,
        "processor": time.process_time() - busy,
        "python": peak(),
    }


def used(pid: int) -> float:
    """The processor's seconds that another process has had."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def peak(pid: int | str = "self") -> int:
    """The most memory (MB) that a process has had so far."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) // 1024


def measure(way: str, count: int, folder: Path, options: argparse.Namespace, dsn: str) -> dict[str, Any]:
    """A row of the table; by a process of its own. Ends the run where its counts are wrong."""
    load = os.getloadavg()[0]
    argv = ["--way", way, "--folder", str(folder), "--heap", options.heap, "--dsn", dsn]
    told = own(argv)
    expected = dict.fromkeys(KINDS, count // SHARE)
    found = {kind: told["found"][kind] for kind in KINDS}
    if found != expected:
        raise SystemExit(f"{way} found {found}, where {expected} were made")
    return {
        "way": WAYS[way][0],
        "keys, millions": count / 1e6,
        "s": told["seconds"],
        "µs/key": told["seconds"] / count * 1e6,
        "JVM, MB": told.get("java", 0),
        "Python, MB": told["python"],
        "processor, µs/key": told["processor"] / count * 1e6,
        "load before": load,
    }


def own(argv: list[str]) -> dict[str, Any]:
    """What this module says at the end of a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.reconcile", *argv], stdout=subprocess.PIPE, check=True, text=True
    )
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=float, nargs="+", default=[1, 5, 10], help="sizes, in millions of keys")
    parser.add_argument("--heap", default="1g", help="of the job's Java")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="what to measure")
    for hidden in ("--way", "--folder", "--dsn", "--make"):
        parser.add_argument(hidden, default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make:
        with spark_session("2g", Path(options.folder)) as spark:
            make(spark, int(options.make), Path(options.folder))
        print("{}")
        return
    if options.way:
        print(json.dumps(WAYS[options.way][1](Path(options.folder), options)))
        return
    ways = [way for way in options.ways if way not in ("pandas", "pyarrow") or importlib.util.find_spec(way)]
    table = []
    with ExitStack() as stack:
        server = stack.enter_context(services.postgres())
        for millions in options.millions:
            count = int(millions * 1e6) // SHARE * SHARE
            folder, database = services.new_folder("reconcile"), f"rows_{count}"
            own(["--make", str(count), "--folder", str(folder)])
            server.create_database(database)
            if "postgresql" in ways:
                fill(server, database, folder)
            for way in ways:
                table.append(measure(way, count, folder, options, server.dsn(database)))
                print(table[-1], flush=True)
            shutil.rmtree(folder)
            with server.connection("postgres") as connection, connection.cursor() as cursor:
                connection.rollback()
                connection.autocommit = True
                cursor.execute(f"DROP DATABASE {database}")
    note = (
        f"heap {options.heap}, local[2]; one key in {SHARE} differs, of each of {len(KINDS)} kinds; all found exactly"
    )
    show("reconcile", "Reconciliation of a listing in Parquet", table, note)


if __name__ == "__main__":
    main()
