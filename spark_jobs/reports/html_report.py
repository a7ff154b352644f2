"""Pages that need nothing but a browser: their template, and their charts as SVG."""

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
_LONGEST = 40


def page(template: str, **values: Any) -> str:
    """The HTML of a template beside this file; whatever comes in is escaped."""
    loader = FileSystemLoader(Path(__file__).parent)
    return Environment(loader=loader, autoescape=select_autoescape(default=True)).get_template(template).render(values)


def bars(found: Bars, colours: Mapping[str, str]) -> str:
    """Stacked horizontal bars as SVG: a bar's name, and its parts by the names that have colours."""
    with _axes(0.6 + 0.42 * len(found)) as (axes, svg):
        # A dollar sign in a folder's name would begin a formula.
        labels = [_short(name).replace("$", r"\$") for name, _ in found]
        left = [0] * len(found)
        for part, colour in colours.items():
            widths = [counts.get(part, 0) for _, counts in found]
            if any(widths):
                axes.barh(range(len(found)), widths, left=left, color=colour, label=part)
            left = [one + other for one, other in zip(left, widths, strict=True)]
        axes.set_yticks(range(len(found)), labels)
        axes.invert_yaxis()
        axes.bar_label(axes.containers[-1], labels=[f"{total:,}" for total in left], padding=4)  # type: ignore[arg-type]  # of bars
        axes.margins(x=0.12)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="lower right")
    return svg[0]


def course(found: Mapping[datetime, Mapping[str, int]], colours: Mapping[str, str], step: timedelta) -> str:
    """Stacked columns along time as SVG, each `step` wide."""
    with _axes(3.2) as (axes, svg):
        times, below = sorted(found), [0] * len(found)
        for part, colour in colours.items():
            heights = [found[at].get(part, 0) for at in times]
            if any(heights):
                axes.bar(times, heights, step, bottom=below, align="edge", color=colour, label=part)  # type: ignore[arg-type]  # times will do
            below = [one + other for one, other in zip(below, heights, strict=True)]
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(axis="x", labelrotation=20)
        axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(colours))
    return svg[0]


@contextmanager
def _axes(height: float) -> Iterator[tuple[Axes, list[str]]]:
    """Axes to draw on; the list has the SVG afterwards, to be put into a page."""
    svg: list[str] = []
    # Letters that the font lacks, the browser's have: they are only measured here.
    with (
        warnings.catch_warnings(action="ignore", category=UserWarning),
        rc_context({"svg.fonttype": "none", "font.family": "sans-serif", "svg.hashsalt": "bucketwire"}),
    ):
        figure = Figure(figsize=(9, height), layout="constrained")
        FigureCanvasSVG(figure)
        yield figure.subplots(), svg
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None})
    text = written.getvalue()
    svg.append(text[text.index("<svg") :])


def _short(name: str) -> str:
    plain = "".join(char if char.isprintable() else "\ufffd" for char in name)
    return plain if len(plain) <= _LONGEST else plain[: _LONGEST - 1] + "…"
