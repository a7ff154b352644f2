"""The Spark session of a job: its master, its memory, its connectors; on one machine nothing listens to another."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

from spark_jobs import connectors

_LOOPBACK = "127.0.0.1"


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
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.execution.arrow.pyspark.enabled": "false",  # would need pandas
        **connectors.options(jars),
    }
    if master.startswith("local"):
        settings |= {"spark.driver.bindAddress": _LOOPBACK, "spark.driver.host": _LOOPBACK}
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
    # Else Spark starts the first `python3` of the PATH, which need not have what the jobs import.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in (settings | dict(more or {})).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()
