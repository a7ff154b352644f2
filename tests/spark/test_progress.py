"""How far a run is: what its tasks have read, and the time that is left."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from app.outbox.reconcile.runs import Progress
from spark_jobs.commands.reconcile import describe_progress
from spark_jobs.progress import COMPARING, LISTING, REPORTING, STARTING, ProgressMeter, remaining, watched
from tests.services import until


def test_what_a_comparison_has_read_is_counted_and_nothing_from_before_it(spark: SparkSession, tmp_path: Path) -> None:
    meter = ProgressMeter(1000)
    assert meter.read() == Progress(STARTING, 0, 0, None)
    spark.range(50).repartition(2, "id").count()
    meter.enter(COMPARING, spark)
    assert (meter.read().keys, meter.read().remaining) == (0, None)
    spark.range(300).repartition(2, "id").collect()
    until(lambda: meter.read().keys == 300, 30, what="what the tasks have read")
    meter.enter(LISTING, spark)
    spark.range(200).write.parquet(f"{tmp_path}/listed")
    until(lambda: meter.read().keys == 200, 30, what="what the tasks have written")
    meter.enter(REPORTING, spark)
    assert meter.read() == Progress(REPORTING, 0, 0, None)


@pytest.mark.parametrize(
    ("written", "merged", "expected", "left"),
    [(0, 0, 100, None), (50, 0, 0, None), (50, 0, 100, 70), (100, 0, 100, 20), (100, 25, 100, 13), (100, 100, 100, 0),
     (900, 0, 100, 20)],
)  # fmt: skip
def test_the_time_that_is_left_follows_from_the_share_that_is_done(
    written: int, merged: int, expected: int, left: int | None
) -> None:
    assert remaining(written, merged, expected, 30) == left


def test_progress_is_shown_until_the_end_and_never_ends_a_run(spark: SparkSession) -> None:
    seen, twice = list[Progress](), threading.Event()

    def show(progress: Progress) -> None:
        seen.append(progress)
        if len(seen) > 1:
            twice.set()
        raise OSError("the terminal is gone")

    with watched(ProgressMeter(), show):
        assert twice.wait(60)
    assert seen[0] == Progress(STARTING, 0, 0, None)
    assert not [thread for thread in threading.enumerate() if thread.name == "progress"]


def test_progress_is_described_in_one_line() -> None:
    assert describe_progress(Progress("comparing", 1_234_567, 1000, 61)) == (
        "comparing: 1,234,567 keys, 1,000 per second, about 61 s left"
    )
    assert describe_progress(Progress("reporting", 0, 0, None)) == "reporting"
