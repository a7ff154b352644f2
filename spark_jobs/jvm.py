"""Start Spark's JVM, and keep from the terminal what it and Ivy write: it is shown if Java does not start."""

import os
import tempfile
from typing import IO

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway

_MAX_LINES, _MAX_BYTES = 5, 1 << 16


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
        try:
            kept = {} if shown else {"stderr": output}
            gateway = launch_gateway(conf, popen_kwargs=kept)  # type: ignore[no-untyped-call]  # PySpark leaves it untyped
        except (PySparkRuntimeError, OSError) as error:
            raise JavaNotStarted(f"Java did not start: {_last_lines(output) or error}") from None
        SparkContext._ensure_initialized(gateway=gateway, conf=conf)


def _last_lines(output: IO[bytes]) -> str:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _MAX_BYTES))
    lines = [line.strip() for line in output.read().decode(errors="replace").splitlines() if line.strip()]
    return "; ".join(lines[-_MAX_LINES:])
