"""Write the report of a journal: operations by bucket, hour, user and type as Parquet and CSV, and an HTML page."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from spark_jobs.jobs.journal import operations, sum_by
from spark_jobs.jobs.repair_events import format_time
from spark_jobs.reports import html_report

PAGE, OPERATIONS = "index.html", "operations.parquet"
DIMENSIONS = ("bucket", "hour", "user", "type")
_OTHER = "other"
_COLOURS = {
    "ObjectCreated": "#4c78a8", "ObjectRemoved": "#b3352b", "ObjectAccessed": "#f0a63a", _OTHER: "#7a5195",
}  # fmt: skip
_MAX_ROWS = 12
# Up to so many hours are shown by hour, up to so many days by day; longer periods by month.
_MAX_HOURS, _MAX_DAYS = 14 * 24, 2 * 366
# The characters of an hour that name the step, and the width of its column.
_STEPS = {"hour": (16, timedelta(hours=1)), "day": (10, timedelta(days=1)), "month": (7, timedelta(days=28))}


@dataclass(frozen=True, slots=True)
class JournalReport:
    """The result of a report."""

    operations: int
    page: Path


def select(journal: DataFrame, *, since: int = 0, before: int = 0, bucket: str = "") -> DataFrame:
    """Return a part of a JOURNAL: `since` (ms) to `before` (ms), of one bucket; 0 and "" mean all.

    It filters by the columns that partition the files too, so that Spark reads no others.
    """
    if since:
        first = F.date_format(F.timestamp_millis(F.lit(since)), "yyyy-MM-dd")
        journal = journal.where((F.col("day") >= first) & (F.col("time") >= since))
    if before:
        last = F.date_format(F.timestamp_millis(F.lit(before)), "yyyy-MM-dd")
        journal = journal.where((F.col("day") <= last) & (F.col("time") < before))
    return journal.where(F.col("bucket") == bucket) if bucket else journal


def write(journal: DataFrame, folder: Path, *, source: str, created_at: int) -> JournalReport:
    """Write tables and page into a new folder; `created_at` is the time (ms) on the page."""
    folder.mkdir(parents=True)
    path = str(folder / OPERATIONS)
    counts = operations(journal)
    counts.write.parquet(path)
    rows = journal.sparkSession.read.schema(counts.schema).parquet(path)
    for name in DIMENSIONS:
        _write_csv(
            sum_by(rows, name).orderBy(F.col(name) if name == "hour" else F.desc("operations"), name), folder, name
        )
    total = rows.agg(
        F.sum("operations"), F.min("hour"), F.max("hour"), *(F.count_distinct(name) for name in DIMENSIONS)
    ).head()
    assert total is not None  # noqa: S101 - an aggregate without groups has one row
    count, first, last, *distinct = total
    charts = []
    if count:
        title, step, columns = _columns(rows, first, last)
        charts.append((title, html_report.columns(columns, _COLOURS, step)))
        charts += [
            (f"Operations by {name}", html_report.bars(_ranked(rows, name), _COLOURS))
            for name in ("bucket", "user", "type")
        ]
    numbers = zip((f"{name}s" for name in DIMENSIONS), distinct, strict=True)
    page = html_report.page(
        "journal.html",
        source=source,
        created_at=format_time(created_at),
        span=f"From {first} to {last}." if count else "",
        total=count or 0,
        figures=[("operations", count or 0), *numbers],
        charts=charts,
        tables=[(name.capitalize(), _largest(rows, name)) for name in ("bucket", "user", "type")] if count else [],
    )
    (folder / PAGE).write_text(page)
    return JournalReport(count or 0, folder / PAGE)


def _write_csv(frame: DataFrame, folder: Path, name: str) -> None:
    """Write a table as one file, row by row, because there may be many users."""
    with (folder / f"by-{name}.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(frame.columns)
        lines.writerows(frame.toLocalIterator())


def _largest(rows: DataFrame, name: str) -> list[tuple[str, int, int]]:
    largest = sum_by(rows, name).orderBy(F.desc("operations"), name).limit(_MAX_ROWS).collect()
    return [(row[name], row["operations"], row["bytes"]) for row in largest]


def _family() -> Column:
    family = F.split_part("type", F.lit(":"), F.lit(2))
    return F.when(family.isin(*_COLOURS), family).otherwise(_OTHER)


def _ranked(rows: DataFrame, name: str) -> html_report.Bars:
    """Return the largest as one bar each, and all others as one bar."""
    largest = [bar for bar, *_ in _largest(rows, name)]
    bar = F.when(F.col(name).isin(largest), F.col(name)).alias("bar")
    counts = sum_by(rows.select(bar, _family().alias("family"), "operations", "bytes"), "bar", "family").collect()
    bars: dict[str | None, dict[str, int]] = {}
    for row in counts:
        bars.setdefault(row["bar"], {})[row["family"]] = row["operations"]
    shown: Sequence[tuple[str, Mapping[str, int]]] = [(name or "(unknown)", bars[name]) for name in largest]
    return [*shown, ("all others", bars[None])] if None in bars else shown


def _columns(rows: DataFrame, first: str, last: str) -> tuple[str, timedelta, dict[datetime, dict[str, int]]]:
    """Return a title, the width of a column, and the columns."""
    hours = (_time(last) - _time(first)) / timedelta(hours=1)
    name = "hour" if hours < _MAX_HOURS else "day" if hours < 24 * _MAX_DAYS else "month"
    length, step = _STEPS[name]
    at = F.substring("hour", 1, length).alias("at")
    counts = sum_by(rows.select(at, _family().alias("family"), "operations", "bytes"), "at", "family").collect()
    columns: dict[datetime, dict[str, int]] = {}
    for row in counts:
        columns.setdefault(_time(row["at"]), {})[row["family"]] = row["operations"]
    return f"Operations by {name}", step, columns


def _time(text: str) -> datetime:
    return datetime.fromisoformat((text + "-01" if len(text) == 7 else text).rstrip("Z") + "+00:00" * ("T" in text))
