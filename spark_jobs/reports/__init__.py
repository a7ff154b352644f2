"""Write the report of a reconciliation: every finding in Parquet and JSON lines, and a self-contained HTML page.

A page has a template of this folder, and charts as SVG.
"""

import io
import itertools
import threading
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, select_autoescape
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # py4j has none
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from app.resources.reconciliation import COMBINED, CONTROLS, CSV_VERSIONS, DRIFT_KINDS, PICTURES, SIGNS, describe_drift
from spark_jobs.errors import root_cause
from spark_jobs.folders import Folder, NotShared
from spark_jobs.jobs.comparison import UNMATCHED
from spark_jobs.jobs.repair_events import format_time
from spark_jobs.session import is_local

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Bars = Sequence[tuple[str, Mapping[str, int]]]
_MAX_LABEL = 40


def render_page(template: str, **values: Any) -> str:
    """Render a template of this folder to HTML; every value is escaped."""
    loader = FileSystemLoader(Path(__file__).parent)
    return Environment(loader=loader, autoescape=select_autoescape(default=True)).get_template(template).render(values)


def prepare_charts() -> None:
    """Import what draws charts in the background: call it as soon as it is known that there is something to draw.

    Most nights there is not, and the import takes longer than the rest of a page.
    """
    threading.Thread(target=_import_charts, name="charts").start()


def _import_charts() -> None:
    with suppress(ImportError):  # `bars` raises it, too
        import_module("matplotlib.backends.backend_svg")


def bars(rows: Bars, colours: Mapping[str, str]) -> str:
    """Return stacked horizontal bars as SVG: each bar's name, and its parts by the names in `colours`."""
    with _axes(0.6 + 0.42 * len(rows)) as (axes, svg):
        # A dollar sign in a folder's name would start a formula.
        labels = [_short(name).replace("$", r"\$") for name, _ in rows]
        left = [0] * len(rows)
        for part, colour in colours.items():
            widths = [counts.get(part, 0) for _, counts in rows]
            if any(widths):
                axes.barh(range(len(rows)), widths, left=left, color=colour, label=part)
            left = [start + width for start, width in zip(left, widths, strict=True)]
        axes.set_yticks(range(len(rows)), labels)
        axes.invert_yaxis()
        axes.bar_label(axes.containers[-1], labels=[f"{total:,}" for total in left], padding=4)  # type: ignore[arg-type]  # of bars
        axes.margins(x=0.12)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="lower right")
    return svg[0]


@contextmanager
def _axes(height: float) -> "Iterator[tuple[Axes, list[str]]]":
    """Yield axes to draw on and a list that has the SVG afterwards."""
    from matplotlib import rc_context  # noqa: PLC0415 - see `prepare_charts`
    from matplotlib.backends.backend_svg import FigureCanvasSVG  # noqa: PLC0415 - as above
    from matplotlib.figure import Figure  # noqa: PLC0415 - as above

    svg: list[str] = []
    # The browser's fonts have the glyphs that this font lacks; here they are only measured.
    with (
        warnings.catch_warnings(action="ignore", category=UserWarning),
        rc_context({"svg.fonttype": "none", "font.family": "sans-serif", "svg.hashsalt": "bucketwire"}),
    ):
        figure = Figure(figsize=(9, height), layout="constrained")
        FigureCanvasSVG(figure)
        yield figure.subplots(), svg
        output = io.StringIO()
        figure.savefig(output, format="svg", metadata={"Date": None})
    text = output.getvalue()
    svg.append(text[text.index("<svg") :])


def _short(name: str) -> str:
    plain = "".join(char if char.isprintable() else "\ufffd" for char in name)
    return plain if len(plain) <= _MAX_LABEL else plain[: _MAX_LABEL - 1] + "…"


PAGE, FINDINGS, LINES = "index.html", "findings.parquet", "findings.jsonl"
_PALETTE = ("#4c78a8", "#f0a63a", "#b3352b", "#7a5195", "#54a24b", "#72b7b2", "#9d755d", "#eeca3b")
_COLOURS = dict(zip(DRIFT_KINDS, itertools.cycle(_PALETTE), strict=False))
_MAX_SAMPLES = 20
_MAX_FOLDERS = 12
_MAX_PROBES = 64
_DAY = 86_400_000
_AGES = (("under a day", _DAY), ("under a week", 7 * _DAY), ("under a month", 30 * _DAY), ("under a year", 365 * _DAY))
_OLDER = "older"


@dataclass(frozen=True, slots=True)
class ReportHeader:
    """The facts of a run that the page shows beside the findings."""

    run: str
    bucket: str
    target: str
    policy: str
    versioned: bool
    listed_at: int
    counts: Mapping[str, int]
    problem: str


def check_shared(spark: SparkSession, scratch: Folder) -> None:
    """Raise `NotShared` unless executors write files in a folder that this process reads and deletes.

    On one machine, where the tasks run in this process, only another file system is asked.
    """
    scratch.check()
    if is_local(spark):
        return
    probe, tasks = scratch / "probe", min(_MAX_PROBES, 2 * spark.sparkContext.defaultParallelism)
    try:
        write_parquet(spark.range(0, tasks, 1, tasks).toDF("number"), probe)
    except (Py4JJavaError, PySparkException) as error:
        raise NotShared(
            f"executors cannot write in {scratch}: {root_cause(error)}; let them run as the user of this process, give "
            "them a folder in which both may write, or name another file system in BUCKETWIRE_REPORTS"
        ) from None
    if not probe.delete():
        raise NotShared(
            f"this process cannot delete what executors have written in {scratch}: they run as another user; let both "
            "run as the same, or name another file system in BUCKETWIRE_REPORTS"
        )


def write_findings(findings: DataFrame, folder: Folder) -> DataFrame:
    """Write every finding; return a frame that reads them back, so that nothing is compared twice.

    Raises `NotShared`.
    """
    written = write_parquet(findings, folder / FINDINGS)
    written.write.mode("errorifexists").json((folder / LINES).url)
    return written


def write_lines(findings: DataFrame, folder: Folder, form: str, bucket: str) -> None:
    """Write the lines of drift in one of the `FORMATS` into a folder beside the others, as text files in any number."""
    drift = findings.where(F.col("kind").isin(*DRIFT_KINDS) & ~F.col("in_flight"))
    if form == COMBINED:
        sign = F.create_map(*(F.lit(part) for kind, sign in SIGNS.items() for part in (kind, sign)))
        lines = drift.select(F.concat_ws(" ", sign[F.col("kind")], F.translate("key", CONTROLS, PICTURES)))
    else:
        # As `quote` of Python does; Java writes a blank as a plus sign.
        parts = [F.lit(bucket), F.replace(F.url_encode("key"), F.lit("+"), F.lit("%20"))]
        parts += [F.col("version")] if form == CSV_VERSIONS else []
        lines = drift.where(F.col("modified").isNotNull()).select(F.concat_ws(",", *parts))
    lines.write.mode("errorifexists").option("lineSep", "\n").text((folder / f"findings.{form}").url)


def write_parquet(frame: DataFrame, folder: Folder) -> DataFrame:
    """Write a frame; return one that reads it back.

    Raises `NotShared` if not all rows can be read: then executors have written to folders of their own.
    """
    observation = Observation()
    counted = frame.observe(observation, F.count(F.lit(1)).alias("rows"))
    counted.write.mode("errorifexists").parquet(folder.url)
    written = frame.sparkSession.read.schema(frame.schema).parquet(folder.reading_url)
    if not is_local(frame.sparkSession):
        check_complete(written, observation.get["rows"], str(folder))
    return written


def check_complete(written: DataFrame, expected: int, path: str) -> None:
    """Raise `NotShared` unless every written row can be read: otherwise drift could be overlooked."""
    if expected and written.count() != expected:
        raise NotShared(
            f"not all findings are in {path}: on a cluster, use a folder that all machines share, or name another file "
            "system in BUCKETWIRE_REPORTS"
        )


def write_page(findings: DataFrame, header: ReportHeader, folder: Folder) -> None:
    """Write the page."""
    drift = findings.where(F.col("kind").isin(*DRIFT_KINDS) & ~F.col("in_flight"))
    counts = {kind: header.counts[kind] for kind in DRIFT_KINDS}
    total = sum(counts.values())
    charts, shown = [], samples(findings, [kind for kind in DRIFT_KINDS if counts[kind]])
    if total:
        folders, ages = by_folder_and_age(drift, header.listed_at)
        charts = [
            ("Drift by kind", bars([(kind, {kind: count}) for kind, count in counts.items()], _COLOURS)),
            ("Drift by folder", bars(folders, _COLOURS)),
            ("Drift by age of the object (of the row if there is no object)", bars(ages, _COLOURS)),
        ]
    verdict = (
        f"{total:,} differences, {header.counts['repaired']:,} repaired."
        if total
        else describe_drift(0, header.counts["in_flight"]).capitalize() + "."
        if header.counts["in_flight"]
        else "No drift: the target's rows match the bucket's objects."
    )
    figures = [("objects", "objects"), ("target rows", "target_rows"), *((kind, kind) for kind in DRIFT_KINDS)]
    figures += [
        ("in flight", "in_flight"),
        (UNMATCHED, UNMATCHED),
        ("unreadable lines", "unreadable"),
        ("repaired", "repaired"),
    ]
    page = render_page(
        "reconcile.html",
        run=header.run,
        bucket=header.bucket,
        target=header.target,
        policy=header.policy,
        versioned=header.versioned,
        listed_at=format_time(header.listed_at),
        problem=header.problem,
        drift=total,
        verdict=verdict,
        figures=[(name, header.counts[member]) for name, member in figures],
        charts=charts,
        samples=shown,
    )
    folder.write(PAGE, [page])


def samples(findings: DataFrame, kinds: Sequence[str]) -> Sequence[tuple[str, Sequence[Mapping[str, Any]]]]:
    """Return for each kind some findings that are not in flight, by one query."""
    if not kinds:
        return []
    some = [findings.where((F.col("kind") == kind) & ~F.col("in_flight")).limit(_MAX_SAMPLES) for kind in kinds]
    rows = [row.asDict() for row in reduce(DataFrame.union, some).collect()]
    return [(kind, [row for row in rows if row["kind"] == kind]) for kind in kinds]


def by_folder_and_age(drift: DataFrame, listed_at: int) -> tuple[Bars, Bars]:
    """Return the bars of the largest folders, and those of the ages, by one reading of the findings."""
    folder = F.when(F.col("key").contains("/"), F.concat(F.substring_index("key", "/", 1), F.lit("/"))).otherwise(
        "(none)"
    )
    age = F.lit(listed_at) - F.coalesce("modified", "row_time")
    age_name = F.when(age.isNull(), "unknown")
    for name, limit in _AGES:
        age_name = age_name.when(age < limit, name)
    kinds = [F.sum(F.when(F.col("kind") == kind, F.col("count")).otherwise(0)).alias(kind) for kind in DRIFT_KINDS]
    grouped = drift.groupBy(folder.alias("folder"), age_name.otherwise(_OLDER).alias("age"), "kind").count()
    grouped = grouped.persist(StorageLevel.DISK_ONLY)
    try:
        ages = {row["age"]: _counter(row) for row in grouped.groupBy("age").agg(*kinds).collect()}
        # Of a million folders Python gets the largest.
        of_folders = grouped.groupBy("folder").agg(F.sum("count").alias("total"), *kinds)
        largest = of_folders.orderBy(F.desc("total"), "folder").limit(_MAX_FOLDERS).collect()
    finally:
        grouped.unpersist()
    folders = [(row["folder"], _counter(row)) for row in largest]
    rest = sum(ages.values(), Counter[str]())
    for _, counts in folders:
        rest -= counts
    others = [("all others", rest)] if rest else []
    names = (*(name for name, _ in _AGES), _OLDER, "unknown")
    return [*folders, *others], [(name, ages.get(name, Counter[str]())) for name in names]


def _counter(row: Row) -> Counter[str]:
    """Return the numbers of a row by kind, without those that are 0."""
    return +Counter({kind: row[kind] for kind in DRIFT_KINDS})
