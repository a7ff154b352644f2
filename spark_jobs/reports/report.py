"""The report of a reconciliation: every finding in Parquet and JSON lines, and one page that needs nothing else."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from spark_jobs.jobs.drift import DRIFT, OUTSIDE
from spark_jobs.jobs.repair_events import day
from spark_jobs.reports import html_report
from spark_jobs.reports.html_report import Bars

PAGE, FINDINGS, LINES = "index.html", "findings.parquet", "findings.jsonl"
_COLOURS = {"missing": "#4c78a8", "stale": "#f0a63a", "orphaned": "#b3352b", "malformed": "#7a5195"}
_SAMPLES = 20
_PREFIXES = 12
_DAY = 86_400_000
_AGES = (("under a day", _DAY), ("under a week", 7 * _DAY), ("under a month", 30 * _DAY), ("under a year", 365 * _DAY))
_OLDER = "older"


@dataclass(frozen=True, slots=True)
class ReportHeader:
    """What the page tells beside the findings."""

    run: str
    bucket: str
    target: str
    policy: str
    versioned: bool
    looked: int
    counts: Mapping[str, int]
    problem: str


class NotShared(Exception):
    """The folder of reports is not the same one for all who write to it; the message says so."""


def write_findings(findings: DataFrame, folder: Path) -> DataFrame:
    """Write every finding; what comes back is read from there, so that nothing is compared twice.

    Raises `NotShared` where not all of it comes back: then executors have written to folders of their own.
    """
    path, seen = str(folder / FINDINGS), Observation()
    findings.observe(seen, F.count(F.lit(1)).alias("findings")).write.mode("errorifexists").parquet(path)
    written = findings.sparkSession.read.schema(findings.schema).parquet(path)
    check_whole(written, seen.get["findings"], path)
    written.write.mode("errorifexists").json(str(folder / LINES))
    return written


def check_whole(written: DataFrame, expected: int, path: str) -> None:
    """Raises `NotShared` unless as many rows are there as were written: else drift could look like none."""
    if written.count() != expected:
        raise NotShared(f"not all findings are in {path}: on a cluster it has to be a folder that all machines share")


def write_page(findings: DataFrame, told: ReportHeader, folder: Path) -> Path:
    """Write the page; its path."""
    drift = findings.where(F.col("kind").isin(*DRIFT) & ~F.col("in_flight"))
    found = {kind: told.counts[kind] for kind in DRIFT}
    total = sum(found.values())
    charts = []
    if total:
        charts = [
            ("Drift by kind", html_report.bars([(kind, {kind: count}) for kind, count in found.items()], _COLOURS)),
            ("Drift by folder", html_report.bars(_by_folder(drift), _COLOURS)),
            (
                "Drift by age of the object, or of the row where there is none",
                html_report.bars(_by_age(drift, told.looked), _COLOURS),
            ),
        ]
    verdict = (
        "The target holds what the bucket holds."
        if not total
        else f"{total:,} differences; {told.counts['repaired']:,} repaired."
    )
    figures = [("objects", "objects"), ("rows", "held"), *((kind, kind) for kind in DRIFT)]
    figures += [("in flight", "in_flight"), (OUTSIDE, OUTSIDE), ("bad lines", "bad"), ("repaired", "repaired")]
    page = html_report.page(
        "page.html",
        run=told.run,
        bucket=told.bucket,
        target=told.target,
        policy=told.policy,
        versioned=told.versioned,
        looked=day(told.looked),
        problem=told.problem,
        drift=total,
        verdict=verdict,
        figures=[(name, told.counts[member]) for name, member in figures],
        charts=charts,
        samples=[(kind, samples(findings, kind)) for kind in DRIFT if found[kind]],
    )
    path = folder / PAGE
    path.write_text(page)
    return path


def samples(findings: DataFrame, kind: str) -> Sequence[Mapping[str, Any]]:
    """Some findings of a kind that are not in flight."""
    chosen = findings.where((F.col("kind") == kind) & ~F.col("in_flight")).limit(_SAMPLES)
    return [one.asDict() for one in chosen.collect()]


def _by_folder(drift: DataFrame) -> Bars:
    folder = F.when(F.col("key").contains("/"), F.concat(F.substring_index("key", "/", 1), F.lit("/"))).otherwise(
        "(none)"
    )
    bars = _counted(drift.withColumn("bar", folder))
    largest = sorted(bars, key=lambda bar: -sum(bars[bar].values()))
    rest: dict[str, int] = {}
    for bar in largest[_PREFIXES:]:
        for kind, count in bars[bar].items():
            rest[kind] = rest.get(kind, 0) + count
    shown = [(bar, bars[bar]) for bar in largest[:_PREFIXES]]
    return [*shown, ("all others", rest)] if rest else shown


def _by_age(drift: DataFrame, looked: int) -> Bars:
    age = F.lit(looked) - F.coalesce("modified", "row_time")
    bar = F.when(age.isNull(), "unknown")
    for name, limit in _AGES:
        bar = bar.when(age < limit, name)
    bars = _counted(drift.withColumn("bar", bar.otherwise(_OLDER)))
    return [(name, bars.get(name, {})) for name in (*(name for name, _ in _AGES), _OLDER, "unknown")]


def _counted(drift: DataFrame) -> dict[str, dict[str, int]]:
    bars: dict[str, dict[str, int]] = {}
    for row in drift.groupBy("bar", "kind").count().collect():
        bars.setdefault(row["bar"], {})[row["kind"]] = row["count"]
    return bars
