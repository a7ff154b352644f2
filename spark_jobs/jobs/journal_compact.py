"""Keep a journal in Parquet, divided by day and bucket: what is there already is not written again.

What was written once stays, also where the log or the target has long forgotten it. A run that was cut short leaves
whole files or none; the next one writes what is missing.
"""

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from app.config.arn import TargetId
from app.outbox.engine.database import Database
from app.outbox.reconcile.runs import AlreadyRunning
from app.outbox.registry import Registry
from spark_jobs.jobs.journal import ASIDE, JOURNAL, of_entries, of_log, unknown
from spark_jobs.jobs.journal_sources import entries, recorded

EVENTS, SET_ASIDE = "events", "aside"
_TASKS = 2  # reads for each processor, as they are not equally long
_FILE = "1000000"  # events of one file at most
_PLAIN, _ODD = 200, 80  # bytes of names without and with characters that Spark escapes in a folder's name
_SPARKS_OWN = "__HIVE_DEFAULT_PARTITION__"  # a folder of this name is read as null


class AlreadyCompacting(AlreadyRunning):
    """Another run writes into the same folder."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a run came to: events read, each once, those of them that are new, and entries that are no events."""

    events: int
    written: int
    aside: int
    folder: Path


def place(folder: Path, target: TargetId | None) -> Path:
    """Where the journal of a target is kept, or that of the log."""
    return folder / (f"{target.type}.{target.name}" if target else "log")


def compact(
    spark: SparkSession, database: Database, registry: Registry, folder: Path, target: TargetId | None = None,
    *, since: int = 0,
) -> Compacted:  # fmt: skip
    """Read the log, or a target of format `access`, from `since` (ms) on, and keep what is not kept yet.

    Raises `AlreadyCompacting`, `UnknownTarget`, `CannotRead`, and what Spark raises.
    """
    kept = place(folder, target)
    kept.mkdir(parents=True, exist_ok=True)
    with _alone(kept), ExitStack() as stack:

        def persisted(frame: DataFrame) -> DataFrame:
            frame = frame.persist(StorageLevel.DISK_ONLY)
            stack.callback(frame.unpersist)
            return frame

        if target is None:
            read, aside = of_log(recorded(spark, database, since=since)), spark.createDataFrame([], ASIDE)
        else:
            settings = registry.settings(registry.target(target))
            tasks = _TASKS * spark.sparkContext.defaultParallelism
            read, aside = of_entries(persisted(entries(spark, settings, tasks=tasks, since=since)))
        read, aside = persisted(read), persisted(aside)
        stored = read.withColumn("bucket", folder_name(F.col("bucket")))
        written = _keep(stored, journal(spark, kept), kept / EVENTS, "day", "bucket")
        _keep(aside, _there(spark, kept / SET_ASIDE, ASIDE), kept / SET_ASIDE)
        count, bad = read.count(), aside.count()
    return Compacted(count, written, bad, kept)


def journal(spark: SparkSession, kept: Path) -> DataFrame:
    """JOURNAL as it is kept there; empty where nothing is."""
    return _there(spark, kept / EVENTS, JOURNAL)


def folder_name(bucket: Column) -> Column:
    """The bucket's name, or its beginning and a digest where Spark cannot make a folder of it.

    A folder's name has 255 bytes at most, and Spark writes up to three for one. An event may name any bucket, and one
    that cannot be written would end the writing of all.
    """
    fits = bucket.rlike(rf"\A[A-Za-z0-9._-]{{1,{_PLAIN}}}\z") | (F.octet_length(bucket) <= _ODD)
    digest = F.concat(F.substring(bucket, 1, 10), F.lit("…"), F.substring(F.sha2(bucket, 256), 1, 32))
    return F.when(fits & (bucket != _SPARKS_OWN), bucket).otherwise(digest)


def _keep(found: DataFrame, known: DataFrame, folder: Path, *divided: str) -> int:
    """Add the rows whose ids are not known; how many."""
    if divided:
        # Only days that are read again can hold an event that is known: the others are not looked at.
        days = [row["day"] for row in found.select("day").distinct().collect()]
        known = known.where(known["day"].isin(days))
    new = unknown(found, known, "id").persist(StorageLevel.DISK_ONLY)
    count = new.count()
    if count:
        ordered = new.repartition(*divided).sortWithinPartitions(*divided, "time") if divided else new
        ordered.write.mode("append").partitionBy(*divided).option("maxRecordsPerFile", _FILE).parquet(str(folder))
    new.unpersist()
    return count


def _there(spark: SparkSession, folder: Path, schema: str) -> DataFrame:
    # With its schema, as Spark would take a bucket called 2026 for a number.
    return spark.read.schema(schema).parquet(str(folder)) if folder.is_dir() else spark.createDataFrame([], schema)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyCompacting(f"another run writes into {folder}; wait until it is over") from None
        yield
