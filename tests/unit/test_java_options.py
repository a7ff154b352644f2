"""Options of Spark's JVM: chosen for a quick start, and never against what the operator has set."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_jobs.java_environment import (
    MAX_QUICK_KEYS,
    archive_options,
    archive_path,
    estimated_size,
    long_options,
    operators_options,
    quick_options,
)

QUICK = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
PARALLEL = "-XX:+UseParallelGC"
RARE = [  # four times Java's own
    "-XX:Tier4InvocationThreshold=20000",
    "-XX:Tier4MinInvocationThreshold=2400",
    "-XX:Tier4CompileThreshold=60000",
    "-XX:Tier4BackEdgeThreshold=160000",
]


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        ("", QUICK),
        ("-Xms1g -Dsome=thing", QUICK),
        ("-XX:+UseG1GC", QUICK[:1]),  # with two collectors Java does not start
        ("-XX:-UseParallelGC", QUICK[:1]),
        ("-XX:TieredStopAtLevel=4", QUICK[1:]),
        ("-XX:-TieredCompilation -XX:+UseZGC", []),
    ],
)
def test_an_option_of_the_operator_excludes_its_counterpart(theirs: str, expected: list[str]) -> None:
    assert quick_options(theirs) == expected


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        ("-Xmx2g", [PARALLEL, *RARE]),
        ("-XX:+UseZGC", RARE),
        ("-XX:-UseParallelGC", RARE),
        ("-XX:Tier4InvocationThreshold=9000", [PARALLEL]),
        ("-XX:CompileThresholdScaling=0.5", [PARALLEL]),
        ("-XX:TieredStopAtLevel=1", [PARALLEL]),
        ("-XX:-TieredCompilation", [PARALLEL]),
        ("-Xint -XX:+UseSerialGC", []),
    ],
)
def test_a_long_run_collects_in_parallel_and_compiles_rarely_unless_the_operator_has_chosen(
    theirs: str, expected: list[str]
) -> None:
    assert long_options(theirs) == expected


@pytest.mark.parametrize("theirs", ["-Xshare:off", "-XX:SharedArchiveFile=/a.jsa", "-XX:ArchiveClassesAtExit=/b.jsa"])
def test_an_archive_of_the_operator_excludes_ours(theirs: str) -> None:
    assert archive_options(theirs, Path("/c.jsa"), leave=False) == []
    assert archive_options("-Xmx2g", Path("/c.jsa"), leave=False)[0] == "-XX:SharedArchiveFile=/c.jsa"
    assert archive_options("-Xmx2g", Path("/c.jsa"), leave=True)[0] == "-XX:ArchiveClassesAtExit=/c.jsa"


def test_operators_set_options_by_variables_and_by_files(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.driver.extraJavaOptions -XX:+UseG1GC\n")
    other = tmp_path / "other"
    other.mkdir()
    (other / "spark-defaults.conf").write_text("spark.driver.defaultJavaOptions -Xint\n")
    environment = {"JDK_JAVA_OPTIONS": "-Xshare:off", "PYSPARK_SUBMIT_ARGS": "--conf a=b pyspark-shell"}
    text = operators_options(environment, tmp_path)
    assert "UseG1GC" in text
    assert "-Xshare:off" in text
    assert "a=b" in text
    assert "-Xint" in operators_options({"SPARK_CONF_DIR": str(other)}, tmp_path)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    (tmp_path / "java").touch()
    return tmp_path / "spark"


def test_the_archive_is_of_one_java_and_one_spark(home: Path, tmp_path: Path) -> None:
    java = tmp_path / "java"
    path = archive_path(tmp_path, {}, home, str(java))
    assert path == archive_path(tmp_path, {"PATH": "/x"}, home, str(java))
    os.utime(home / "jars", ns=(0, 0))
    upgraded = archive_path(tmp_path, {}, home, str(java))
    os.utime(java, ns=(0, 0))
    assert len({path, upgraded, archive_path(tmp_path, {}, home, str(java))}) == 3


def test_there_is_no_archive_where_java_cannot_make_one(home: Path, tmp_path: Path) -> None:
    java = str(tmp_path / "java")
    assert archive_path(tmp_path, {}, home, None) is None
    assert archive_path(tmp_path, {"SPARK_CONF_DIR": "/etc/spark"}, home, java) is None
    assert archive_path(tmp_path / "a b", {}, home, java) is None
    (home / "conf").mkdir()
    assert archive_path(tmp_path, {}, home, java) is None


def test_a_run_is_short_by_its_listing_and_by_its_last_size(tmp_path: Path) -> None:
    assert estimated_size(0, "") == 0
    assert estimated_size(40, "") == 40
    (tmp_path / "listing.parquet").mkdir()
    (tmp_path / "listing.parquet" / "part-0").write_bytes(b"x" * 6400)
    assert estimated_size(0, str(tmp_path / "listing.parquet")) == 200
    assert estimated_size(MAX_QUICK_KEYS, str(tmp_path / "listing.parquet")) == MAX_QUICK_KEYS
    assert estimated_size(7, str(tmp_path / "none")) == 7  # the job says that there is no such file
