"""Keep a journal in Parquet, partitioned by day and bucket; an event that it already has is not written again.

Events stay in the journal when the log or the target has deleted them. An interrupted run leaves whole files or none;
the next run writes what is missing.
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
from spark_jobs.jobs.journal import JOURNAL, QUARANTINE, not_in, parse_entries, parse_log
from spark_jobs.jobs.journal_sources import entries, recorded

EVENTS, QUARANTINED = "events", "quarantine"
_TASKS_PER_CORE = 2  # reads, because they are not equally long
_MAX_FILE_EVENTS = "1000000"
# Bytes of bucket names without and with characters that Spark escapes in a folder's name.
_MAX_PLAIN_NAME, _MAX_ESCAPED_NAME = 200, 80
_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"  # Spark reads a folder of this name as null


class AlreadyCompacting(AlreadyRunning):
    """Another run is writing to the same folder."""


@dataclass(frozen=True, slots=True)
class CompactResult:
    """The result of a run: distinct events read, those of them that are new, and entries that are not events."""

    events: int
    written: int
    quarantined: int
    folder: Path


def journal_folder(folder: Path, target: TargetId | None) -> Path:
    """Return the folder of a target's journal, or of the log's."""
    return folder / (f"{target.type}.{target.name}" if target else "log")


def compact(
    spark: SparkSession, database: Database, registry: Registry, folder: Path, target: TargetId | None = None,
    *, since: int = 0,
) -> CompactResult:  # fmt: skip
    """Read the log, or a target of format `access`, from `since` (ms) on, and add the new events to its journal.

    Raises `AlreadyCompacting`, `UnknownTarget`, `CannotRead`, and what Spark raises.
    """
    destination = journal_folder(folder, target)
    destination.mkdir(parents=True, exist_ok=True)
    with _locked(destination), ExitStack() as stack:

        def persisted(frame: DataFrame) -> DataFrame:
            frame = frame.persist(StorageLevel.DISK_ONLY)
            stack.callback(frame.unpersist)
            return frame

        if target is None:
            events, quarantine = (
                parse_log(recorded(spark, database, since=since)),
                spark.createDataFrame([], QUARANTINE),
            )
        else:
            settings = registry.settings(registry.target(target))
            tasks = _TASKS_PER_CORE * spark.sparkContext.defaultParallelism
            events, quarantine = parse_entries(persisted(entries(spark, settings, tasks=tasks, since=since)))
        events, quarantine = persisted(events), persisted(quarantine)
        stored = events.withColumn("bucket", folder_name(F.col("bucket")))
        written = _append_new(stored, read_journal(spark, destination), destination / EVENTS, "day", "bucket")
        quarantine_folder = destination / QUARANTINED
        _append_new(quarantine, _read(spark, quarantine_folder, QUARANTINE), quarantine_folder)
        event_count, quarantined = events.count(), quarantine.count()
    return CompactResult(event_count, written, quarantined, destination)


def read_journal(spark: SparkSession, folder: Path) -> DataFrame:
    """Return the JOURNAL in a folder; an empty one if there is none."""
    return _read(spark, folder / EVENTS, JOURNAL)


def folder_name(bucket: Column) -> Column:
    """Return the bucket's name, or its beginning and a digest if Spark cannot make a folder of it.

    A folder's name has at most 255 bytes, and Spark escapes a byte as up to three. An event may name any bucket, and
    one name that cannot be written would fail the whole write.
    """
    fits = bucket.rlike(rf"\A[A-Za-z0-9._-]{{1,{_MAX_PLAIN_NAME}}}\z") | (F.octet_length(bucket) <= _MAX_ESCAPED_NAME)
    digest = F.concat(F.substring(bucket, 1, 10), F.lit("…"), F.substring(F.sha2(bucket, 256), 1, 32))
    return F.when(fits & (bucket != _NULL_FOLDER), bucket).otherwise(digest)


def _append_new(rows: DataFrame, known: DataFrame, folder: Path, *partition_by: str) -> int:
    """Write the rows whose ids are not known; return their number."""
    if partition_by:
        # Only days that were read now can have a known event: Spark does not read the others.
        days = [row["day"] for row in rows.select("day").distinct().collect()]
        known = known.where(known["day"].isin(days))
    new = not_in(rows, known, "id").persist(StorageLevel.DISK_ONLY)
    count = new.count()
    if count:
        ordered = new
        if partition_by:
            ordered = new.repartition(*partition_by).sortWithinPartitions(*partition_by, "time")
        writer = ordered.write.mode("append").partitionBy(*partition_by)
        writer.option("maxRecordsPerFile", _MAX_FILE_EVENTS).parquet(str(folder))
    new.unpersist()
    return count


def _read(spark: SparkSession, folder: Path, schema: str) -> DataFrame:
    # With a schema, because Spark would infer that a bucket called 2026 is a number.
    return spark.read.schema(schema).parquet(str(folder)) if folder.is_dir() else spark.createDataFrame([], schema)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyCompacting(f"another run is writing to {folder}; wait until it has finished") from None
        yield
