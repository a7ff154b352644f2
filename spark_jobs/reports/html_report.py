"""Render self-contained HTML pages: templates, and charts as SVG."""

import io
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, select_autoescape

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Bars = Sequence[tuple[str, Mapping[str, int]]]
_MAX_LABEL = 40


def page(template: str, **values: Any) -> str:
    """Render a template of this folder to HTML; every value is escaped."""
    loader = FileSystemLoader(Path(__file__).parent)
    return Environment(loader=loader, autoescape=select_autoescape(default=True)).get_template(template).render(values)


def prepare_charts() -> None:
    """Import what draws charts in the background: call it as soon as it is known that there is something to draw.

    Most nights there is not, and the import takes longer than the rest of a page.
    """
    threading.Thread(target=_import, name="charts").start()


def _import() -> None:
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
