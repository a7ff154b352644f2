"""Open a job's Spark session: its master, its memory, its libraries, and on a cluster the job's own code.

On one machine Spark listens on the loopback interface only, and its Python processes find `app` and `spark_jobs` where
they are installed. On a cluster the executors get the two from here; the libraries that these import have to be in the
executors' Python, which `PYSPARK_PYTHON` names. Neither looks for modules in the working directory.
"""

import contextlib
import os
import shutil
import signal
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark import SparkConf, SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession

from spark_jobs import connectors, java_options, jvm
from spark_jobs.jvm import ClassArchive

_LOOPBACK = "127.0.0.1"
_ROOT = Path(__file__).parents[1]
_SHIPPED_PACKAGES = ("app", "spark_jobs")
# Spark makes many small partitions, and joins small ones when it knows their sizes (adaptive execution). On one machine
# a partition is sorted in memory; on a cluster, up to 200,000 keys in each of these are.
_LOCAL_PARTITIONS, _LOCAL_PARTITION_SIZE = 64, "16m"
_CLUSTER_PARTITIONS = 2000


@contextlib.contextmanager
def session(
    name: str, *, master: str = "local[*]", jars: str = "", memory: str = "1g", more: Mapping[str, str] | None = None,
    libraries: Sequence[str] = connectors.DRIVERS,
) -> Iterator[SparkSession]:  # fmt: skip
    """Open a session and stop it at the end. `jars` is a folder with the `libraries`; empty: Spark downloads them.

    `more` are Spark's own settings and take precedence. Under `spark-submit` its master, memory and settings take
    precedence over all of these, and without `jars` the libraries are those that it was given.

    Raises `FileNotFoundError` if a library is missing, and `JavaNotStarted`.
    """
    interrupted = signal.getsignal(signal.SIGINT)  # Spark's own handler fails when its session has ended
    if _is_submitted():
        conf = _submitted_conf(name, jars, libraries)
        master = conf.get("spark.master") or master
    else:
        conf = _conf(name, master, _settings(master, jars, memory, libraries) | dict(more or {}))
        jvm.start(conf)
    spark = SparkSession.builder.config(conf=conf).getOrCreate()
    with TemporaryDirectory(prefix="bucketwire-") as folder:
        try:
            spark.sparkContext.setLogLevel("ERROR")
            if not _is_local(master):
                spark.sparkContext.addPyFile(str(write_code_zip(Path(folder) / "bucketwire.zip")))
                if not spark.sparkContext.getConf().contains("spark.sql.shuffle.partitions"):
                    spark.conf.set("spark.sql.shuffle.partitions", str(_CLUSTER_PARTITIONS))
            yield spark
        finally:
            spark.stop()
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, interrupted)


def launch(
    name: str, *, master: str = "local[*]", jars: str = "", memory: str = "1g",
    libraries: Sequence[str] = connectors.DRIVERS, is_short: bool = False, cache: Path | None = None,
) -> Callable[[], None]:  # fmt: skip
    """Start the JVM of a session that is opened later with the same arguments, in the background.

    `is_short` is for a run that Java's optimizing compiler would only slow down; in the folder `cache` is an archive of
    Spark's classes. Call what is returned after the session: it makes that archive if there is none.

    Raises `FileNotFoundError` as `session` does; any other error is left to `session`.
    """
    conf = _conf(name, master, _settings(master, jars, memory, libraries))
    if SparkContext._gateway is not None or _is_submitted():
        return lambda: None
    options, archive = _java(is_short=is_short, cache=cache)
    if options:
        conf.set(java_options.DEFAULT_OPTIONS, " ".join([java_options.UTC, *options]))

    def start() -> None:
        with contextlib.suppress(Exception):
            jvm.start(conf)

    threading.Thread(target=start, name="jvm").start()
    return archive.keep if archive else lambda: None


def _is_submitted() -> bool:
    """Return whether `spark-submit` has started this process, with a JVM."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _submitted_conf(name: str, jars: str, libraries: Sequence[str]) -> SparkConf:
    """Return the settings of `spark-submit`, and of a session's own those that it does not have."""
    jvm.start(SparkConf(loadDefaults=False))
    conf = SparkConf().setAppName(name)
    master = conf.get("spark.master") or ""
    for key, value in _settings(master, jars, "", libraries).items():
        if key not in ("spark.driver.memory", "spark.jars.packages"):  # it is too late for these
            conf.setIfMissing(key, value)
    return conf


def _conf(name: str, master: str, settings: Mapping[str, str]) -> SparkConf:
    conf = SparkConf(loadDefaults=False)
    return conf.setAll([("spark.app.name", name), ("spark.master", master), *settings.items()])


def _java(*, is_short: bool, cache: Path | None) -> tuple[list[str], ClassArchive | None]:
    """Return the JVM's options and its archive of classes, and set those of Spark's launcher."""
    home, theirs = _home(), _operators_options()
    if java_options.DEFAULT_OPTIONS in theirs:
        return [], None
    options = java_options.quick_options(theirs) if is_short else java_options.long_options(theirs)
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", " ".join(java_options.quick_options(theirs)))
    java_home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{java_home}/bin" if java_home else None)
    path = java_options.archive_path(cache, os.environ, home, java) if cache else None
    archive = ClassArchive.at(path) if path else None
    if archive is None:
        return options, None
    leave = archive.written is not None
    of_archive = java_options.archive_options(theirs, archive.written or archive.path, leave=leave)
    return options + of_archive, archive if of_archive else None


def _home() -> Path:
    return Path(_find_spark_home())  # type: ignore[no-untyped-call]  # PySpark leaves it untyped


def _operators_options() -> str:
    return java_options.operators_options(os.environ, _home())


def _settings(master: str, jars: str, memory: str, libraries: Sequence[str]) -> dict[str, str]:
    """Return Spark's settings, and set its environment variables."""
    settings = {
        "spark.driver.memory": memory,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "false",  # would need pandas
        # Would tell Spark of each expression which line of Python it is from, which takes longer than to make it.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        # Would read a listing's row groups, mostly 128 MB each, into memory outside the heap, which has the heap's size
        # as its limit. Where that is too small, the reader waits for five minutes and fails.
        "spark.hadoop.parquet.hadoop.vectored.io.enabled": "false",
        "spark.executorEnv.PYTHONSAFEPATH": "1",
        # S3 writes times to ORC files without their zone, UTC. Java reads them in its own, which may skip an hour.
        **{name: java_options.UTC for name in java_options.DEFAULTS if name not in _operators_options()},
        **connectors.options(jars, libraries),
    }
    if _is_local(master):
        # Otherwise Spark starts the first `python3` of the PATH, which may lack the libraries of the jobs.
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
        settings |= {"spark.driver.bindAddress": _LOOPBACK, "spark.driver.host": _LOOPBACK}
        settings["spark.sql.shuffle.partitions"] = str(_LOCAL_PARTITIONS)
        settings["spark.sql.adaptive.advisoryPartitionSizeInBytes"] = _LOCAL_PARTITION_SIZE
        settings["spark.executorEnv.PYTHONPATH"] = str(_ROOT)  # before the user's own, which Spark appends
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    return settings


def is_local(spark: SparkSession) -> bool:
    """Return whether a session has no executors on other machines, so that every process of it has the same files."""
    return _is_local(spark.sparkContext.master or "")


def _is_local(master: str) -> bool:
    return master.startswith("local")


def write_code_zip(path: Path) -> Path:
    """Write the code for executors to a zip that Python can import, and return its path."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in _SHIPPED_PACKAGES:
            for file in sorted((_ROOT / package).rglob("*.py")):
                archive.write(file, file.relative_to(_ROOT))
    return path
