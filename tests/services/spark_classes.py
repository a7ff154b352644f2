"""An archive of the classes that Spark's driver loads, made once: with it a driver starts in half the time.

It is of one Java and one Spark at their places, and in `tests.provision`'s cache. So is Spark itself: an archive of a
checkout's own environment would be made anew for each checkout, which takes as long as ten drivers. A driver that has
another class path than the archive does without it, and says nothing of that.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from tests import provision
from tests.services import java, speed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TIMEOUT = 200  # seconds for making it on a quiet machine, which takes about a minute
_PAUSE = 3600  # seconds after an attempt that took longer
_PARTS = ("bin", "jars", "python")  # of the wheel: what its JVM and their Python processes need
_FILES = "plain-files.jar"
_FILES_SOURCE = Path(__file__).parent / "sources" / "PlainFiles.java"


def home() -> Path:
    """Spark's programs and libraries, for SPARK_HOME: the wheel's, at a place that all checkouts share.

    Its modules of Python are files in a folder that is called as the wheel's archive of them: of that one each task
    would read the list of 1,300 files a dozen times, which takes 0.2 s of processor time. Among the libraries is the
    tests' own `PlainFiles`.
    """
    files = hashlib.blake2b(_FILES_SOURCE.read_bytes(), digest_size=4).hexdigest() if shutil.which("javac") else "none"
    place = provision.CACHE / f"spark-{version('pyspark')}-plain-files-{files}"
    if not place.exists():
        found = importlib.util.find_spec("pyspark")
        assert found is not None
        assert found.origin is not None
        provision.CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=provision.CACHE) as folder:
            for part in _PARTS:
                shutil.copytree(Path(found.origin).parent / part, Path(folder, "spark", part), copy_function=_link)
            modules = Path(folder, "spark/python/lib/pyspark.zip")
            with zipfile.ZipFile(modules) as archived:
                modules.unlink()
                archived.extractall(modules)
            _compile_files(Path(folder, "spark/jars"))
            with contextlib.suppress(OSError):  # another process was faster
                Path(folder, "spark").rename(place)
    return place


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # in another file system
        shutil.copy2(source, target)


def _compile_files(jars: Path) -> None:
    if not (compiler := shutil.which("javac")):
        return
    with tempfile.TemporaryDirectory() as made:
        subprocess.run([compiler, "-nowarn", "-cp", f"{jars}/*", "-d", made, _FILES_SOURCE], check=True)
        with zipfile.ZipFile(jars / _FILES, "w") as jar:
            for each in sorted(Path(made).iterdir()):
                jar.write(each, each.name)


def plain_files() -> Mapping[str, str]:
    """The settings by which Spark writes files by `PlainFiles`; none, where there was no compiler for it."""
    return {"spark.hadoop.fs.file.impl": "PlainFiles"} if (home() / "jars" / _FILES).exists() else {}


def archive() -> Path:
    """Where it is, or will be."""
    return java.archive("spark", sorted(home().glob("jars/spark-core_*.jar")))


def options() -> str:
    """The options of a JVM of Spark's."""
    return f"{' '.join(java.QUICK)} -XX:SharedArchiveFile={archive()} -Xshare:auto -Xlog:disable"


def provide() -> None:
    """Make the archive if there is none; it takes about a minute. Without it everything works, but takes longer."""
    place = archive()
    failed = place.with_suffix(".failed")
    if place.exists():
        return
    with (provision.CACHE / ".spark-classes").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if place.exists() or (failed.exists() and time.time() - failed.stat().st_mtime < _PAUSE):
            return
        with tempfile.TemporaryDirectory(dir=provision.CACHE) as folder:
            made = Path(folder) / "made.jsa"
            making = subprocess.Popen(
                [sys.executable, "-m", "tests.services.spark_classes", made, folder],
                cwd=Path(__file__).parents[2], env=os.environ | {"SPARK_HOME": str(home())},
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0,
            )  # fmt: skip
            try:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    making.wait(_TIMEOUT * speed.slowness())
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(making.pid, signal.SIGKILL)  # its JVM, too
                making.wait()
            if made.exists():
                made.rename(place)
            else:
                failed.touch()


def main(made: str, folder: str) -> None:
    """A job that does a bit of everything, and whose JVM leaves the archive."""
    from spark_jobs import connectors
    from spark_jobs.session import session

    settings = plain_files() | {
        "spark.driver.extraJavaOptions": f"{' '.join(java.QUICK)} -XX:ArchiveClassesAtExit={made} -Xlog:disable",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
    }
    with session(
        "classes", master="local[1]", jars=str(provision.SPARK_JARS), memory="768m", more=settings,
        libraries=tuple(connectors.SHA256),
    ) as spark:  # fmt: skip
        gateway = spark.sparkContext._gateway
        frame = spark.createDataFrame([(str(number), number) for number in range(9)], "id string, n int")
        joined = frame.join(frame.groupBy("n").count(), "n").orderBy("id")
        for form in ("parquet", "json", "csv"):
            joined.write.partitionBy("n").format(form).save(f"{folder}/{form}")
            spark.read.schema("id string, n int, count bigint").format(form).load(f"{folder}/{form}").distinct().count()
        frame.rdd.mapPartitions(lambda rows: [len(list(rows))]).collect()
        _update_tables(spark, folder)
    process = gateway.proc
    gateway.shutdown()
    process.stdin.close()
    process.wait(_TIMEOUT * speed.slowness())  # while it writes the archive


def _update_tables(spark: SparkSession, folder: str) -> None:
    """Most of what Spark loads to plan a query it loads for these."""
    from app.outbox.log.append import Log
    from spark_jobs.iceberg import Warehouse
    from spark_jobs.jobs.tables import update
    from tests.support.builders import add_target, migrated
    from tests.support.table_events import WEEK, histories, inventory, opened

    database = migrated(f"sqlite:///{folder}/outbox.db")
    add_target(database)
    tables, events = opened(spark, Warehouse(f"{folder}/tables")), histories(9, 40)
    for some in (events[:20], events[20:]):
        Log(database).append([some])
        update(tables, database, WEEK)
        inventory(tables)
    database.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
