"""The Spark session of a job: its master, its memory, its connectors, and on a cluster the job's own code.

On one machine nothing listens to another. On a cluster the executors get `app` and `spark_jobs` from here; what these
import has to be in the executors' Python, which `PYSPARK_PYTHON` names.
"""

import os
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from spark_jobs import connectors

_LOOPBACK = "127.0.0.1"
_HERE = Path(__file__).parents[1]
_SHIPPED = ("app", "spark_jobs")


@contextmanager
def session(
    name: str, *, master: str = "local[*]", jars: str = "", memory: str = "1g", more: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session, stopped at the end. `jars` is a folder with the connectors; empty: Spark fetches and keeps them.

    `more` are Spark's own settings and win. Raises `FileNotFoundError` where a connector is not in the folder.
    """
    settings = {
        "spark.driver.memory": memory,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "false",  # would need pandas
        **connectors.options(jars),
    }
    is_local = master.startswith("local")
    if is_local:
        # Else Spark starts the first `python3` of the PATH, which need not have what the jobs import.
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
        settings |= {"spark.driver.bindAddress": _LOOPBACK, "spark.driver.host": _LOOPBACK}
        settings["spark.sql.shuffle.partitions"] = "8"  # on a cluster its own settings say
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in (settings | dict(more or {})).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    with TemporaryDirectory(prefix="bucketwire-") as folder:
        try:
            spark.sparkContext.setLogLevel("ERROR")
            if not is_local:
                spark.sparkContext.addPyFile(str(packed(Path(folder) / "bucketwire.zip")))
            yield spark
        finally:
            spark.stop()


def packed(path: Path) -> Path:
    """Write the code that executors run, as Python imports it from a zip; the path."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for package in _SHIPPED:
            for file in sorted((_HERE / package).rglob("*.py")):
                packed.write(file, file.relative_to(_HERE))
    return path
