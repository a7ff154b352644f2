"""The report of a reconciliation: every finding in Parquet and JSON lines, and one page that needs nothing else."""

import io
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, select_autoescape
from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from spark_jobs.drift import DRIFT, OUTSIDE
from spark_jobs.repair import day

PAGE, FINDINGS, LINES = "index.html", "findings.parquet", "findings.jsonl"
_COLOURS = {"missing": "#4c78a8", "stale": "#f0a63a", "orphaned": "#b3352b", "malformed": "#7a5195"}
_SAMPLES = 20
_PREFIXES = 12
_DAY = 86_400_000
_AGES = (("under a day", _DAY), ("under a week", 7 * _DAY), ("under a month", 30 * _DAY), ("under a year", 365 * _DAY))
_OLDER = "older"


@dataclass(frozen=True, slots=True)
class Told:
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


def write_page(findings: DataFrame, told: Told, folder: Path) -> Path:
    """Write the page; its path."""
    drift = findings.where(F.col("kind").isin(*DRIFT) & ~F.col("in_flight"))
    found = {kind: told.counts[kind] for kind in DRIFT}
    total = sum(found.values())
    charts = []
    if total:
        charts = [
            ("Drift by kind", _chart([(kind, {kind: count}) for kind, count in found.items()])),
            ("Drift by folder", _chart(_by_folder(drift))),
            ("Drift by age of the object, or of the row where there is none", _chart(_by_age(drift, told.looked))),
        ]
    verdict = (
        "The target holds what the bucket holds."
        if not total
        else f"{total:,} differences; {told.counts['repaired']:,} repaired."
    )
    figures = [("objects", "objects"), ("rows", "held"), *((kind, kind) for kind in DRIFT)]
    figures += [("in flight", "in_flight"), (OUTSIDE, OUTSIDE), ("bad lines", "bad"), ("repaired", "repaired")]
    template = Environment(autoescape=select_autoescape(default=True)).from_string(
        Path(__file__).with_name("page.html").read_text()
    )
    page = template.render(
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


_Bars = Sequence[tuple[str, Mapping[str, int]]]


def _by_folder(drift: DataFrame) -> _Bars:
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


def _by_age(drift: DataFrame, looked: int) -> _Bars:
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


def _chart(bars: _Bars) -> str:
    """Stacked horizontal bars as SVG, to be put into a page."""
    # Letters that the font lacks, the browser's have: they are only measured here.
    with (
        warnings.catch_warnings(action="ignore", category=UserWarning),
        rc_context({"svg.fonttype": "none", "font.family": "sans-serif", "svg.hashsalt": "bucketwire"}),
    ):
        figure = Figure(figsize=(9, 0.6 + 0.42 * len(bars)), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots()
        # A dollar sign in a folder's name would begin a formula.
        labels = [_short(name).replace("$", r"\$") for name, _ in bars]
        left = [0] * len(bars)
        for kind in DRIFT:
            widths = [counts.get(kind, 0) for _, counts in bars]
            if any(widths):
                axes.barh(range(len(bars)), widths, left=left, color=_COLOURS[kind], label=kind)
            left = [one + other for one, other in zip(left, widths, strict=True)]
        axes.set_yticks(range(len(bars)), labels)
        axes.invert_yaxis()
        axes.bar_label(axes.containers[-1], labels=[f"{total:,}" for total in left], padding=4)  # type: ignore[arg-type]  # of bars
        axes.margins(x=0.12)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="lower right")
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None})
    svg = written.getvalue()
    return svg[svg.index("<svg") :]


def _short(name: str) -> str:
    plain = "".join(char if char.isprintable() else "\ufffd" for char in name)
    return plain if len(plain) <= 40 else plain[:39] + "…"
