"""Measure the time per key and the memory of a reconciliation, beside single processes without Spark.

    python -m bench.reconcile [--millions 1 5 10] [--heap 1g] [--case drift] [--data FOLDER] [--lock FILE]

Spark creates a listing and the rows of a target, both as Parquet, with a known number of differences of every kind; the
rows are copied to a PostgreSQL, too. Each measurement is a separate process: the whole command `bucketwire reconcile
run` against PostgreSQL; a PySpark script against it, as one would write by hand (`bench/plain_spark.py`); the job in a
warm session on `local[2]`; the same steps with the rows from Parquet; a full outer join by pandas and one by pyarrow
(`pip install pandas pyarrow`, skipped where they are not installed); and a merge of two sorted listings, as in `rclone
check`. The script and the last three compare ETags and sizes only, in the case `drift` alone. A measurement with wrong
counts ends the run. With `--data` the data are kept, for the next time; `--lock` is for a machine that is busy: each
measurement has real-time priority while it holds that file, and so have its servers.
"""

import argparse
import importlib.util
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from psycopg2.extensions import parse_dsn

from app.config.arn import TargetId
from app.outbox.engine.database import Database, now_ms
from bench.reconcile_data import (
    BUCKET,
    CASES,
    COPY,
    DRIFT_INTERVAL,
    KINDS,
    LINES,
    LISTING,
    PARQUET,
    ROWS,
    SORTED,
    expected,
    make,
    parts,
)
from bench.reconcile_stores import STORES
from bench.report import show
from bench.turns import turn
from spark_jobs import connectors
from tests import provision, services
from tests.support.builders import SECRET_KEY, add_target, migrated, registry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "rows"


@contextmanager
def spark_session(heap: str, folder: Path) -> Iterator["SparkSession"]:
    """Open the job's session with two cores and a heap of exactly that size."""
    from spark_jobs.java_environment import long_options
    from spark_jobs.session import session

    java = " ".join([f"-Xms{heap}", *long_options("")])
    more = {"spark.local.dir": str(folder / "spark"), "spark.driver.extraJavaOptions": java}
    with session("bench", master="local[2]", jars=str(provision.SPARK_JARS), memory=heap, more=more) as spark:
        yield spark


@contextmanager
def outbox(folder: Path, options: argparse.Namespace) -> Iterator[Database]:
    """Make an outbox with the target."""
    database = migrated(f"sqlite:///{folder}/outbox.db")
    add_target(database, NAME, type_name=options.store, values=json.loads(options.settings), bucket=BUCKET)
    try:
        yield database
    finally:
        database.close()
        shutil.rmtree(folder / "reports", ignore_errors=True)
        (folder / "outbox.db").unlink()


def command(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run `bucketwire reconcile run` from the shell."""
    more = {
        "BUCKETWIRE_DATABASE_URL": f"sqlite:///{folder}/outbox.db",
        "BUCKETWIRE_DATA_DIR": str(folder / "data"),
        "BUCKETWIRE_SPARK_JARS": str(provision.SPARK_JARS),
        "BUCKETWIRE_SPARK_MASTER": "local[2]",
        "BUCKETWIRE_SPARK_MEMORY": options.heap,
        "BUCKETWIRE_SECRET_KEYS": SECRET_KEY,
    }
    argv = [sys.executable, "-m", "spark_jobs", "reconcile", "run", BUCKET]
    argv += ["--target", f"{options.store}:{NAME}", "--json"]
    argv += ["--listing", str(folder / LISTING), "--listed-at", datetime.now(UTC).isoformat()]
    has_archive = any((folder / "data" / "cache").glob("*.jsa"))
    for _ in range(1 if has_archive else 2):  # the first run leaves an archive of classes
        with outbox(folder, options):
            result = from_shell(argv, more, folder)
    return result


def script(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run a PySpark script that has nothing of ours from the shell."""
    settings, findings = json.loads(options.settings), folder / "script"
    dsn = parse_dsn(settings["connection_string"])
    arguments = {
        "listing": folder / LISTING,
        "url": f"jdbc:postgresql://{dsn['host']}:{dsn['port']}/{dsn['dbname']}",
        "user": dsn["user"],
        "table": settings["table"],
        "bucket": BUCKET,
        "findings": findings,
        "master": "local[2]",
        "heap": options.heap,
        "jar": provision.SPARK_JARS / connectors.jar_name(connectors.POSTGRESQL),
    }
    argv = [sys.executable, "-P", str(Path(__file__).with_name("plain_spark.py"))]
    argv += [f"--{name}={value}" for name, value in arguments.items()]
    try:
        return from_shell(argv, {"PGPASSWORD": dsn["password"], "SPARK_LOCAL_IP": services.LOOPBACK}, folder)
    finally:
        shutil.rmtree(findings, ignore_errors=True)


def from_shell(argv: list[str], more: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """Time a process that prints counts."""
    output = folder / "output.json"  # of a pipe, Spark's JVM would keep an end open after the process's own
    with output.open("wb") as file:
        started, before = time.perf_counter(), os.times()
        subprocess.run(argv, env=os.environ | more, stdout=file, check=True)
        seconds, after = time.perf_counter() - started, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return {"counts": json.loads(output.read_bytes()), "seconds": seconds, "cpu": cpu, "python": 0}


def job(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run `bucketwire reconcile run` in an open session."""
    from spark_jobs.api_client import Api
    from spark_jobs.jobs.reconcile import ReconcileConfig, reconcile

    config = ReconcileConfig(
        bucket=BUCKET, target=TargetId(options.store, NAME), reports=str(folder / "reports"), arrival=0.0,
        listing=str(folder / LISTING), listed_at=now_ms(), versions=options.case == "versions",
    )  # fmt: skip
    with outbox(folder, options) as database:

        def run(spark: "SparkSession") -> Mapping[str, int]:
            return reconcile(spark, database, registry(database), config, Api("http://127.0.0.1:9")).counts

        return with_spark(run, folder, options)


def steps(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run the steps of the job with the rows from Parquet, which no target has."""
    from app.rules.model import Rule
    from spark_jobs.folders import Folder
    from spark_jobs.jobs.comparison import count_findings, mark_in_flight
    from spark_jobs.jobs.reconcile import write_differences
    from spark_jobs.listings.listing import from_parquet
    from spark_jobs.reports import write_findings

    rule = Rule(bucket=BUCKET, events=("*",), prefix="", suffix="", target=TargetId("postgresql", NAME))

    findings_folder = Folder.of(folder / "findings")

    def run(spark: "SparkSession") -> Mapping[str, int]:
        listing = from_parquet(spark, str(folder / LISTING), BUCKET, versioned=options.case == "versions")
        differences, sizes = write_differences(
            listing, spark.read.parquet(str(folder / ROWS)), findings_folder, has_single_rows=True, bucket=BUCKET,
            rules=[rule], policy="mirror",
        )  # fmt: skip
        findings = write_findings(mark_in_flight(differences, None, young=now_ms()), findings_folder)
        return {**count_findings(findings), **sizes, "unreadable": listing.unreadable_count}

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


Method = Callable[[Path, argparse.Namespace], dict[str, Any]]
METHODS: dict[str, tuple[str, str, Method]] = {  # what it is called, its store
    "command": ("command, rows in PostgreSQL", "postgresql", command),
    "script": ("plain PySpark script, rows in PostgreSQL", "postgresql", script),
    "postgresql": ("job, rows in PostgreSQL", "postgresql", job),
    "mysql": ("job, rows in MySQL", "mysql", job),
    "redis": ("job, rows in Redis", "redis", job),
    "elasticsearch": ("job, rows in Elasticsearch", "elasticsearch", job),
    "parquet": ("same steps, rows in Parquet", "", steps),
    "pandas": ("pandas, one process", "", by_pandas),
    "pyarrow": ("pyarrow, one process", "", by_pyarrow),
    "merge": ("merge of two sorted listings", "", by_merge),
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


def measure(
    method: str, count: int, folder: Path, heap: str, options: argparse.Namespace, settings: Mapping[str, str]
) -> dict[str, Any]:
    """Measure in a separate process; return a row of the table. Ends the run if the counts are wrong."""
    argv = ["--method", method, "--folder", str(folder), "--heap", heap, "--case", options.case]
    with turn(options.lock):
        load = os.getloadavg()[0]
        result = run_in_process([*argv, "--store", METHODS[method][1], "--settings", json.dumps(settings)])
    counts, right = {kind: result["counts"][kind] for kind in KINDS}, dict(expected(options.case, count))
    if METHODS[method][1] == "elasticsearch":  # a document's id is a hash: without its event its key is not known
        right |= {"missing": right["missing"] + right["malformed"], "malformed": 0}
    if counts != right:
        raise SystemExit(f"{method} found {counts}, expected {right}")
    return {
        "method": METHODS[method][0],
        "heap": heap,
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
    parser.add_argument("--heap", nargs="+", default=["1g"], help="heaps of the job's JVM")
    parser.add_argument("--case", choices=CASES, default=CASES[0], help="what differs")
    default = ["command", "script", "postgresql", "parquet", "pandas", "pyarrow", "merge"]
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=default, help="what to measure")
    parser.add_argument("--data", default="", metavar="FOLDER", help="keep the data there")
    parser.add_argument("--lock", default="", metavar="FILE", help="measure in turns, at real-time priority")
    for hidden in ("--method", "--folder", "--store", "--settings", "--make", "--formats"):
        parser.add_argument(hidden, default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make:
        with spark_session("2g", Path(options.folder)) as spark:
            make(spark, options.case, int(options.make), Path(options.folder), options.formats.split(","))
        print("{}")
        return
    if options.method:
        options.heap = options.heap[0]
        print(json.dumps(METHODS[options.method][2](Path(options.folder), options)))
        return
    methods = [
        method for method in options.methods if method not in ("pandas", "pyarrow") or importlib.util.find_spec(method)
    ]
    table = []
    for millions in options.millions:
        count = int(millions * 1e6) // DRIFT_INTERVAL * DRIFT_INTERVAL
        folder = Path(options.data) / f"{options.case}-{count}" if options.data else services.new_folder("reconcile")
        folder.mkdir(parents=True, exist_ok=True)
        formats = [PARQUET]
        formats += [COPY] if any(METHODS[method][1] for method in methods) else []
        formats += [LINES] if "merge" in methods else []
        to_make = ["--make", str(count), "--formats", ",".join(formats)]
        run_in_process([*to_make, "--folder", str(folder), "--case", options.case])
        for store, group in itertools.groupby(methods, key=lambda method: METHODS[method][1]):
            with STORES[store](folder) if store else nullcontext({}) as settings:
                for method, heap in itertools.product(group, options.heap):
                    table.append(measure(method, count, folder, heap, options, settings))
                    print(table[-1], flush=True)
        if not options.data:
            shutil.rmtree(folder)
    note = (
        f"local[2]; case {options.case}, one key in {DRIFT_INTERVAL} differs for each of "
        f"{len(KINDS)} kinds; every difference was found"
    )
    show("reconcile", "Reconciliation of a listing in Parquet", table, note)


if __name__ == "__main__":
    main()
