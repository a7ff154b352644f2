"""Files that a run needs while it goes on, beside the reports, where driver and executors both reach them.

So memory holds no keys of the log, and Spark knows their size when it plans a join.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from pyspark.sql import DataFrame, SparkSession

from app.outbox.engine.database import now_ms
from app.outbox.errors import UnknownRun
from app.outbox.reconcile.runs import Reconciliations
from spark_jobs.folders import Folder
from spark_jobs.listings.listing_parts import delete_old
from spark_jobs.reports.report import check_shared
from spark_jobs.runs import LEASE_MS

_SCRATCH = "scratch"


@contextmanager
def scratch_folder(spark: SparkSession, reports: Folder, runs: Reconciliations, run: str) -> Iterator[Folder]:
    """Open the folder of a run, delete those of killed runs, and in the end delete its own. Raises `NotShared`."""
    scratch = reports / _SCRATCH / run
    try:
        check_shared(spark, scratch)
        _delete_killed(reports, runs, run)
        yield scratch
    finally:
        scratch.delete()


def write_keys(folder: Folder, name: str, keys: Iterable[str]) -> None:
    """Write keys to a file of a folder for `frame_of_keys`. Memory holds few at a time."""
    # Not by orjson, which refuses half of a surrogate pair: that is the key of no object, and must not end a run.
    folder.write(f"{name}.jsonl", (json.dumps({"key": key}) + "\n" for key in keys))


def frame_of_keys(spark: SparkSession, folder: Folder) -> DataFrame | None:
    """Return the keys in a folder's files as the column `key`; None for no keys.

    A frame made of Python's objects would need Python workers, and has no size by which Spark could plan a join.
    """
    return spark.read.schema("key string").json(folder.reading_url) if folder.size() else None


def _delete_killed(reports: Folder, runs: Reconciliations, run: str) -> None:
    """Delete the files of runs that were killed. What is not of a run that this service knows is left alone."""

    def is_dead(name: str) -> bool:
        with suppress(UnknownRun):
            known = runs.get(name)
            return name != run and bool(known.finished_at or known.alive_until < now_ms() - LEASE_MS)
        return False

    for name in filter(is_dead, (reports / _SCRATCH).names()):
        (reports / _SCRATCH / name).delete()
        if not runs.get(name).report:
            (reports / name).delete()
    delete_old(reports / _SCRATCH, is_dead)
