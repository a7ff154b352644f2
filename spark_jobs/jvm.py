"""Start and end Spark's JVM, and keep an archive of the classes that it loads: with it a JVM starts in half the time.

The first run leaves the archive, for which its JVM takes some seconds when it ends; later runs use it. It is of one
Java and one Spark; a JVM goes on without an archive that does not fit. What the JVM and Ivy write is kept from the
terminal, and shown if Java does not start.
"""

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway

from spark_jobs import user_name

_TIMEOUT = 300  # seconds that a JVM may need to write it
_MODE = 0o600


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
            whole.chmod(_MODE)
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
        java.wait(_TIMEOUT)
    except subprocess.TimeoutExpired:
        java.kill()
        java.wait()


_MAX_LINES, _MAX_BYTES = 5, 1 << 16
_PLACE = re.compile(r"at \S+\(|\.\.\. \d+ more$")


class JavaNotStarted(Exception):
    """Spark's JVM did not start; the message has the last lines that it wrote."""


def start(conf: SparkConf) -> None:
    """Start the JVM, unless this process has one. Raises `JavaNotStarted`.

    With BUCKETWIRE_DEBUG=1 it writes to this process's standard error.
    """
    with SparkContext._lock, tempfile.TemporaryFile() as output:
        if SparkContext._gateway is not None:
            return
        shown = os.environ.get("BUCKETWIRE_DEBUG", "") not in ("", "0")
        user_name.set_variables()
        try:
            kept = {} if shown else {"stderr": output}
            gateway = launch_gateway(conf, popen_kwargs=kept)  # type: ignore[no-untyped-call]  # PySpark leaves it untyped
        except (PySparkRuntimeError, OSError) as error:
            reasons = filter(None, (last_lines(output) or str(error), user_name.hint()))
            raise JavaNotStarted(f"Java did not start: {'; '.join(reasons)}") from None
        SparkContext._ensure_initialized(gateway=gateway, conf=conf)


def last_lines(output: IO[bytes]) -> str:
    """Return the last lines of what Java wrote, without the places of a stack trace, which would leave no room."""
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _MAX_BYTES))
    lines = [line.strip() for line in output.read().decode(errors="replace").splitlines()]
    said = [line for line in lines if line and not _PLACE.match(line)]
    return "; ".join(said[-_MAX_LINES:])
