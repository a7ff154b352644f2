"""Open a job's Spark session: its JVM, its master, its memory, its libraries, and on a cluster the job's own code.

On one machine Spark listens on the loopback interface only, and its Python processes find `app` and `spark_jobs` where
they are installed. On a cluster the executors get the two from here; the libraries that these import have to be in the
executors' Python, which `PYSPARK_PYTHON` names. Neither looks for modules in the working directory.

With an archive of the classes that it loads a JVM starts in half the time. The first run leaves the archive, for which
its JVM takes some seconds when it ends; later runs use it. It is of one Java and one Spark; a JVM goes on without an
archive that does not fit. What the JVM and Ivy write is kept from the terminal, and shown if Java does not start.

Queries of few rows are planned so that they start at once: Spark's defaults are made for many rows.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from spark_jobs import connectors, java_environment
from spark_jobs.folders import Folder

_LOOPBACK = "127.0.0.1"
_ROOT = Path(__file__).parents[1]
_SHIPPED_PACKAGES = ("app", "spark_jobs")
# Spark makes many small partitions, and joins small ones when it knows their sizes (adaptive execution). On one machine
# a partition is sorted in memory; on a cluster, up to 200,000 keys in each of these are.
_LOCAL_PARTITIONS, _LOCAL_PARTITION_SIZE = 64, "16m"
_CLUSTER_PARTITIONS = 2000
_ARCHIVE_TIMEOUT = 300  # seconds that a JVM may need to write it
_ARCHIVE_MODE = 0o600
_MAX_LINES, _MAX_BYTES = 5, 1 << 16
_PLACE_IN_TRACE = re.compile(r"at \S+\(|\.\.\. \d+ more$")  # a line of a stack trace in what Java writes
FEW = 200_000  # rows and entries
_FEW_BYTES = 8 << 20  # of their files
# Compiling a plan takes longer than running it, and so does planning again after each shuffle.
_SMALL_PLANS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
_PARTITIONS = "spark.sql.shuffle.partitions"


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """An archive, or where it will be: then `written` is the file that the JVM writes."""

    path: Path
    written: Path | None = None
    folder: TemporaryDirectory[str] | None = None

    @classmethod
    def at(cls, path: Path) -> "ClassArchive | None":
        """Return the archive, or one that will be written; None if that has failed before or cannot be kept."""
        if path.exists():
            return cls(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError:
            return None
        if _failure(path).exists() or not os.access(path.parent, os.W_OK):
            return None
        folder = TemporaryDirectory(prefix="bucketwire-classes-", ignore_cleanup_errors=True)
        return cls(path, Path(folder.name) / path.name, folder)

    def keep(self) -> None:
        """End the JVM of this process, and keep what it leaves."""
        if self.written is None or self.folder is None:
            return
        with contextlib.suppress(OSError), self.folder:
            _end_java()
            if not self.written.exists():
                _failure(self.path).touch()
                return
            whole = self.path.with_suffix(f".{os.getpid()}")  # the temporary folder may be in another file system
            shutil.move(self.written, whole)
            whole.chmod(_ARCHIVE_MODE)
            whole.replace(self.path)
            # Of an earlier Java or Spark, or of a process that was killed before it had replaced the archive.
            for other in self.path.parent.glob("spark-classes-*"):
                if other != self.path:
                    other.unlink(missing_ok=True)


def _failure(path: Path) -> Path:
    return path.with_suffix(".failed")


def _end_java() -> None:
    gateway = SparkContext._gateway
    if gateway is None:
        return
    java: subprocess.Popen[bytes] = gateway.proc
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    if java.stdin is not None:
        java.stdin.close()
    try:
        java.wait(_ARCHIVE_TIMEOUT)
    except subprocess.TimeoutExpired:
        java.kill()
        java.wait()


class JavaNotStarted(Exception):
    """Spark's JVM did not start; the message has the last lines that it wrote."""


def start_jvm(conf: SparkConf) -> None:
    """Start the JVM, unless this process has one. Raises `JavaNotStarted`.

    With BUCKETWIRE_DEBUG=1 it writes to this process's standard error.
    """
    with SparkContext._lock, tempfile.TemporaryFile() as output:
        if SparkContext._gateway is not None:
            return
        shown = os.environ.get("BUCKETWIRE_DEBUG", "") not in ("", "0")
        java_environment.set_user_name()
        try:
            kept = {} if shown else {"stderr": output}
            gateway = launch_gateway(conf, popen_kwargs=kept)  # type: ignore[no-untyped-call]  # PySpark leaves it untyped
        except (PySparkRuntimeError, OSError) as error:
            reasons = filter(None, (last_lines(output) or str(error), java_environment.user_name_hint()))
            raise JavaNotStarted(f"Java did not start: {'; '.join(reasons)}") from None
        SparkContext._ensure_initialized(gateway=gateway, conf=conf)


def last_lines(output: IO[bytes]) -> str:
    """Return the last lines of what Java wrote, without the places of a stack trace, which would leave no room."""
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _MAX_BYTES))
    lines = [line.strip() for line in output.read().decode(errors="replace").splitlines()]
    said = [line for line in lines if line and not _PLACE_IN_TRACE.match(line)]
    return "; ".join(said[-_MAX_LINES:])


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
        start_jvm(conf)
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
        conf.set(java_environment.DEFAULT_OPTIONS, " ".join([java_environment.UTC, *options]))

    def start() -> None:
        with contextlib.suppress(Exception):
            start_jvm(conf)

    threading.Thread(target=start, name="jvm").start()
    return archive.keep if archive else lambda: None


def _is_submitted() -> bool:
    """Return whether `spark-submit` has started this process, with a JVM."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _submitted_conf(name: str, jars: str, libraries: Sequence[str]) -> SparkConf:
    """Return the settings of `spark-submit`, and of a session's own those that it does not have."""
    start_jvm(SparkConf(loadDefaults=False))
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
    if java_environment.DEFAULT_OPTIONS in theirs:
        return [], None
    options = java_environment.quick_options(theirs) if is_short else java_environment.long_options(theirs)
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", " ".join(java_environment.quick_options(theirs)))
    java_home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{java_home}/bin" if java_home else None)
    path = java_environment.archive_path(cache, os.environ, home, java) if cache else None
    archive = ClassArchive.at(path) if path else None
    if archive is None:
        return options, None
    leave = archive.written is not None
    of_archive = java_environment.archive_options(theirs, archive.written or archive.path, leave=leave)
    return options + of_archive, archive if of_archive else None


def _home() -> Path:
    return Path(_find_spark_home())  # type: ignore[no-untyped-call]  # PySpark leaves it untyped


def _operators_options() -> str:
    return java_environment.operators_options(os.environ, _home())


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
        **{name: java_environment.UTC for name in java_environment.DEFAULTS if name not in _operators_options()},
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


@contextmanager
def small_plans(spark: SparkSession, *, is_small: bool) -> Iterator[None]:
    """Plan queries for few rows inside, if they are; settings of the operator's stay as they are."""
    if not is_small:
        yield
        return
    theirs = spark.sparkContext.getConf()
    settings = {name: value for name, value in _SMALL_PLANS.items() if not theirs.contains(name)}
    settings[_PARTITIONS] = str(min(int(spark.conf.get(_PARTITIONS)), spark.sparkContext.defaultParallelism))  # type: ignore[arg-type]  # it has a default
    before = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def is_few(size: int) -> bool:
    """Return whether a known number of entries and rows is small; 0 stands for an unknown one."""
    return 0 < size <= FEW


def are_small_files(folder: Folder) -> bool:
    """Return whether the files in a folder have few rows."""
    return folder.size() <= _FEW_BYTES
