"""Print a benchmark's table and write its numbers as JSON to bench/results/."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"


def show(name: str, title: str, rows: Sequence[Mapping[str, Any]], note: str = "") -> None:
    """Print the table and write `<name>.json`."""
    table = Table(title=title, caption=note, title_justify="left", caption_justify="left")
    for column in rows[0]:
        table.add_column(column, justify="left" if isinstance(rows[0][column], str) else "right")
    for row in rows:
        table.add_row(*(_text(value) for value in row.values()))
    Console(width=140).print(table)
    RESULTS.mkdir(exist_ok=True)
    document = {"title": title, "at": time.strftime("%FT%TZ", time.gmtime()), "cores": os.cpu_count(), "rows": rows}
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=1))


def met(value: float, most: float) -> str:
    """Say whether an aim is met."""
    return "met" if value <= most else "missed"


def show_aims(names: Sequence[str]) -> None:
    """Print a page with every row of these benchmarks that has an aim: its ratio first, and whether the aim is met."""
    documents = [json.loads((RESULTS / f"{name}.json").read_text()) for name in names]
    rows = [row for document in documents for row in document["rows"] if row.get("aim")]
    columns = ("ratio", "aim", "met", "what", "of the rate of")
    show("aims", "Aims", [{column: row.get(column, "") for column in columns} for row in rows])


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else "" if value is None else str(value)
