"""Measure how far a run is: its stage, the entries and rows it has read, their rate, and the remaining time."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # py4j has none
from pyspark.sql import SparkSession

from app.outbox.reconcile.runs import Progress

STARTING, LISTING, COMPARING = "starting Spark", "listing", "comparing"
REPORTING, REPAIRING = "reporting", "repairing"
_READ, _MERGED = 0.6, 0.4  # of the time of a comparison: until the shuffle is written, and from there on
_INTERVAL = 1.0  # seconds


class ProgressMeter:
    """Measure the progress of one run; any thread may ask for it.

    `expected` is the number of entries and rows, from an earlier run; 0 if it is not known. `latest` is what was read
    last: unlike `read` it asks nobody, so it never waits.
    """

    def __init__(self, expected: int = 0) -> None:
        self._expected, self._stage = expected, STARTING
        self._spark: SparkSession | None = None
        self._begun = time.monotonic()
        self._earlier_jobs = frozenset[int]()
        self.latest = Progress(STARTING, 0, 0, None)

    def enter(self, stage: str, spark: SparkSession) -> None:
        """Say what the run begins to do."""
        self._earlier_jobs = frozenset(_jobs(spark))
        self._stage, self._spark, self._begun = stage, spark, time.monotonic()

    @contextlib.contextmanager
    def listing(self, spark: SparkSession) -> Iterator[None]:
        """Say that the run lists the bucket before it compares."""
        self.enter(LISTING, spark)
        yield
        self.enter(COMPARING, spark)

    def read(self) -> Progress:
        """Ask Spark for the progress; it reports what its tasks have read every 10 s, and when one of them ends."""
        self.latest = self._read()
        return self.latest

    def _read(self) -> Progress:
        stage, seconds = self._stage, time.monotonic() - self._begun
        if self._spark is None or stage not in (LISTING, COMPARING):
            return Progress(stage, 0, 0, None)
        written, merged, is_all_written = self._records(self._spark)
        if stage == LISTING:
            return Progress(stage, written, int(written / max(seconds, 1)), None)
        expected = written if is_all_written else self._expected
        return Progress(stage, written, int(written / max(seconds, 1)), remaining(written, merged, expected, seconds))

    def _records(self, spark: SparkSession) -> tuple[int, int, bool]:
        """Return the numbers of records that were written to the shuffle and read from it, and whether all were.

        Of a listing, which has no shuffle, these are the records that were written to files.
        """
        context, written, merged = spark.sparkContext, 0, 0
        tracker, store = context.statusTracker(), context._jsc.sc().statusStore()
        jobs = [tracker.getJobInfo(job) for job in _jobs(spark) if job not in self._earlier_jobs]
        for stage in {stage for job in jobs if job for stage in job.stageIds}:
            with contextlib.suppress(Py4JJavaError):  # a stage that was skipped is not known
                measured = store.lastStageAttempt(stage)
                written += measured.outputRecords() if self._stage == LISTING else measured.shuffleWriteRecords()
                merged += measured.shuffleReadRecords()
        return written, merged, merged > 0


def remaining(written: int, merged: int, expected: int, seconds: float) -> int | None:
    """Return the seconds that a comparison still needs if it goes on at this rate; None if that cannot be said."""
    if not written or not expected:
        return None
    share = _READ * min(1.0, written / expected) + _MERGED * min(1.0, merged / expected)
    return round(seconds * (1 - share) / share)


def _jobs(spark: SparkSession) -> list[int]:
    return list(spark.sparkContext.statusTracker().getJobIdsForGroup(None))


@contextlib.contextmanager
def watched(meter: ProgressMeter, show: Callable[[Progress], None] | None = None) -> Iterator[None]:
    """Read the meter every second inside, and pass what it says to `show`."""
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(_INTERVAL):
            with contextlib.suppress(Exception):  # the session may have just been stopped
                progress = meter.read()
                if show is not None:
                    show(progress)

    thread = threading.Thread(target=watch, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(_INTERVAL)  # a JVM that does not answer must not keep the run from ending
