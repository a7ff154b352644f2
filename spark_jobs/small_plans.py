"""Plan queries of few rows so that they start at once: Spark's defaults are made for many rows."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from spark_jobs.folders import Folder

FEW = 200_000  # rows and entries
_FEW_BYTES = 8 << 20  # of their files
# Compiling a plan takes longer than running it, and so does planning again after each shuffle.
_SETTINGS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
_PARTITIONS = "spark.sql.shuffle.partitions"


@contextmanager
def small_plans(spark: SparkSession, *, is_small: bool) -> Iterator[None]:
    """Plan queries for few rows inside, if they are; settings of the operator's stay as they are."""
    if not is_small:
        yield
        return
    theirs = spark.sparkContext.getConf()
    settings = {name: value for name, value in _SETTINGS.items() if not theirs.contains(name)}
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
