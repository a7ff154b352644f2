"""Render self-contained HTML pages: templates, and charts as SVG."""

import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, select_autoescape
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

Bars = Sequence[tuple[str, Mapping[str, int]]]
_MAX_LABEL = 40


def page(template: str, **values: Any) -> str:
    """Render a template of this folder to HTML; every value is escaped."""
    loader = FileSystemLoader(Path(__file__).parent)
    return Environment(loader=loader, autoescape=select_autoescape(default=True)).get_template(template).render(values)


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


def columns(counts: Mapping[datetime, Mapping[str, int]], colours: Mapping[str, str], step: timedelta) -> str:
    """Return stacked columns over time as SVG, each `step` wide."""
    with _axes(3.2) as (axes, svg):
        times, bottom = sorted(counts), [0] * len(counts)
        for part, colour in colours.items():
            heights = [counts[at].get(part, 0) for at in times]
            if any(heights):
                axes.bar(times, heights, step, bottom=bottom, align="edge", color=colour, label=part)  # type: ignore[arg-type]  # accepts times too
            bottom = [start + height for start, height in zip(bottom, heights, strict=True)]
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(axis="x", labelrotation=20)
        axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(colours))
    return svg[0]


@contextmanager
def _axes(height: float) -> Iterator[tuple[Axes, list[str]]]:
    """Yield axes to draw on and a list that has the SVG afterwards."""
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
