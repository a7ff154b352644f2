"""An archive of the classes that Spark's driver loads, made once: with it a driver starts in half the time.

It is of one Java and one Spark at their places, and in `tests.provision`'s cache. A driver that has another class path
than the archive does without it, and says nothing of that.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

from tests import provision
from tests.services import java


def home() -> Path:
    """Where the wheel has put Spark."""
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def archive() -> Path:
    """Where it is, or will be."""
    return java.archive("spark", sorted(home().glob("jars/spark-core_*.jar")))


def options() -> str:
    """The options of a JVM of Spark's."""
    return f"{' '.join(java.QUICK)} -XX:SharedArchiveFile={archive()} -Xshare:auto -Xlog:disable"


def provide() -> None:
    """Make the archive if there is none; it takes half a minute. Without it everything works, but takes longer."""
    place = archive()
    if place.exists():
        return
    with (provision.CACHE / ".spark-classes").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if place.exists():
            return
        with tempfile.TemporaryDirectory(dir=provision.CACHE) as folder:
            made = Path(folder) / "made.jsa"
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(
                    [sys.executable, "-m", "tests.services.spark_classes", made, folder],
                    cwd=Path(__file__).parents[2], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                    timeout=200, check=False,
                )  # fmt: skip
            if made.exists():
                made.rename(place)


def main(made: str, folder: str) -> None:
    """A job that does a bit of everything, and whose JVM leaves the archive."""
    from spark_jobs.session import session

    settings = {
        "spark.driver.extraJavaOptions": f"{' '.join(java.QUICK)} -XX:ArchiveClassesAtExit={made} -Xlog:disable",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
    }
    with session("classes", master="local[1]", jars=str(provision.SPARK_JARS), memory="768m", more=settings) as spark:
        gateway = spark.sparkContext._gateway
        frame = spark.createDataFrame([(str(number), number) for number in range(9)], "id string, n int")
        joined = frame.join(frame.groupBy("n").count(), "n").orderBy("id")
        for form in ("parquet", "json", "csv"):
            joined.write.partitionBy("n").format(form).save(f"{folder}/{form}")
            spark.read.schema("id string, n int, count bigint").format(form).load(f"{folder}/{form}").distinct().count()
        frame.rdd.mapPartitions(lambda rows: [len(list(rows))]).collect()
    process = gateway.proc
    gateway.shutdown()
    process.stdin.close()
    process.wait(150)


if __name__ == "__main__":
    main(*sys.argv[1:])
