"""The report of a journal: operations by bucket, hour, user and type as Parquet and CSV, and one page with charts."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from spark_jobs.jobs.journal import by, operations
from spark_jobs.jobs.repair_events import day
from spark_jobs.reports import html_report

PAGE, OPERATIONS = "index.html", "operations.parquet"
BY = ("bucket", "hour", "user", "type")
_OTHER = "other"
_COLOURS = {
    "ObjectCreated": "#4c78a8", "ObjectRemoved": "#b3352b", "ObjectAccessed": "#f0a63a", _OTHER: "#7a5195",
}  # fmt: skip
_SHOWN = 12
# So many hours are shown one by one, so many days; else months. And how many letters of an hour are meant by each.
_HOURS, _DAYS = 14 * 24, 2 * 366
_STEPS = {"hour": (16, timedelta(hours=1)), "day": (10, timedelta(days=1)), "month": (7, timedelta(days=28))}


@dataclass(frozen=True, slots=True)
class JournalReport:
    """What a report tells."""

    operations: int
    page: Path


def chosen(journal: DataFrame, *, since: int = 0, before: int = 0, bucket: str = "") -> DataFrame:
    """The part of a JOURNAL that is asked for: from a time (ms) to another, of one bucket; 0 and "" mean all.

    It is chosen by what the files are divided by, too, so that no others are read.
    """
    if since:
        first = F.date_format(F.timestamp_millis(F.lit(since)), "yyyy-MM-dd")
        journal = journal.where((F.col("day") >= first) & (F.col("time") >= since))
    if before:
        last = F.date_format(F.timestamp_millis(F.lit(before)), "yyyy-MM-dd")
        journal = journal.where((F.col("day") <= last) & (F.col("time") < before))
    return journal.where(F.col("bucket") == bucket) if bucket else journal


def write(journal: DataFrame, folder: Path, *, source: str, made: int) -> JournalReport:
    """Write tables and page into a folder that is not there yet; `made` is the time (ms)."""
    folder.mkdir(parents=True)
    path = str(folder / OPERATIONS)
    counted = operations(journal)
    counted.write.parquet(path)
    found = journal.sparkSession.read.schema(counted.schema).parquet(path)
    for name in BY:
        _csv(by(found, name).orderBy(F.col(name) if name == "hour" else F.desc("operations"), name), folder, name)
    total = found.agg(
        F.sum("operations"), F.min("hour"), F.max("hour"), *(F.count_distinct(name) for name in BY)
    ).head()
    assert total is not None  # noqa: S101 - an aggregate of everything is one row
    count, first, last, *distinct = total
    charts = []
    if count:
        title, step, course = _course(found, first, last)
        charts.append((title, html_report.course(course, _COLOURS, step)))
        charts += [
            (f"Operations by {name}", html_report.bars(_ranked(found, name), _COLOURS))
            for name in ("bucket", "user", "type")
        ]
    numbers = zip((f"{name}s" for name in BY), distinct, strict=True)
    page = html_report.page(
        "journal.html",
        source=source,
        made=day(made),
        span=f"From {first} to {last}." if count else "",
        total=count or 0,
        figures=[("operations", count or 0), *numbers],
        charts=charts,
        tables=[(name.capitalize(), _largest(found, name)) for name in ("bucket", "user", "type")] if count else [],
    )
    (folder / PAGE).write_text(page)
    return JournalReport(count or 0, folder / PAGE)


def _csv(frame: DataFrame, folder: Path, name: str) -> None:
    """A table as one file, row by row: there may be many users."""
    with (folder / f"by-{name}.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(frame.columns)
        lines.writerows(frame.toLocalIterator())


def _largest(found: DataFrame, name: str) -> list[tuple[str, int, int]]:
    rows = by(found, name).orderBy(F.desc("operations"), name).limit(_SHOWN).collect()
    return [(row[name], row["operations"], row["bytes"]) for row in rows]


def _family() -> Column:
    family = F.split_part("type", F.lit(":"), F.lit(2))
    return F.when(family.isin(*_COLOURS), family).otherwise(_OTHER)


def _ranked(found: DataFrame, name: str) -> html_report.Bars:
    """The largest, and all others as one."""
    largest = [bar for bar, *_ in _largest(found, name)]
    bar = F.when(F.col(name).isin(largest), F.col(name)).alias("bar")
    rows = by(found.select(bar, _family().alias("family"), "operations", "bytes"), "bar", "family").collect()
    bars: dict[str | None, dict[str, int]] = {}
    for row in rows:
        bars.setdefault(row["bar"], {})[row["family"]] = row["operations"]
    shown: Sequence[tuple[str, Mapping[str, int]]] = [(one or "(not said)", bars[one]) for one in largest]
    return [*shown, ("all others", bars[None])] if None in bars else shown


def _course(found: DataFrame, first: str, last: str) -> tuple[str, timedelta, dict[datetime, dict[str, int]]]:
    """A title, the width of a column, and the columns."""
    hours = (_moment(last) - _moment(first)) / timedelta(hours=1)
    name = "hour" if hours < _HOURS else "day" if hours < 24 * _DAYS else "month"
    letters, step = _STEPS[name]
    at = F.substring("hour", 1, letters).alias("at")
    rows = by(found.select(at, _family().alias("family"), "operations", "bytes"), "at", "family").collect()
    columns: dict[datetime, dict[str, int]] = {}
    for row in rows:
        columns.setdefault(_moment(row["at"]), {})[row["family"]] = row["operations"]
    return f"Operations by {name}", step, columns


def _moment(text: str) -> datetime:
    return datetime.fromisoformat((text + "-01" if len(text) == 7 else text).rstrip("Z") + "+00:00" * ("T" in text))
