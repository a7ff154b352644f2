"""Print a benchmark's table and write its numbers as JSON to bench/results/; judge them by their aims."""

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Aim:
    """One line of the last page: a value, mostly a ratio, and what it should be at least, or at most."""

    value: float
    aim: float | None  # None: measured for comparison only
    what: str
    beside: str = ""
    unit: str = "%"  # of value and aim: "%" (written as a ratio), "x", or a unit
    most: bool = False  # the aim is an upper limit

    @property
    def met(self) -> bool:
        """Whether the value is as it should be; true without an aim."""
        return self.aim is None or (self.value <= self.aim if self.most else self.value >= self.aim)

    def row(self) -> dict[str, str]:
        """Return the line's cells."""
        aim = "" if self.aim is None else f"{'at most' if self.most else 'at least'} {_unit(self.aim, self.unit)}"
        met = "" if self.aim is None else "yes" if self.met else "NO"
        value = _unit(self.value, self.unit)
        return {"ratio": value, "aim": aim or "–", "met": met or "–", "what": self.what, "beside": self.beside}


def show(name: str, title: str, rows: Sequence[Mapping[str, Any]], note: str = "", *, aims: Iterable[Aim] = ()) -> None:
    """Print the table and its aims, and write `<name>.json`."""
    aims = list(aims)
    _print(title, rows, note)
    if aims:
        _print("", [aim.row() for aim in aims])
    RESULTS.mkdir(exist_ok=True)
    document = {"title": title, "at": time.strftime("%FT%TZ", time.gmtime()), "cores": os.cpu_count(), "rows": rows}
    document["aims"] = [asdict(aim) for aim in aims]
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=1))


def show_aims(names: Sequence[str]) -> None:
    """Print one page with the ratio, the aim and whether it is met, of every line of these benchmarks."""
    aims = [Aim(**aim) for name in names for aim in json.loads((RESULTS / f"{name}.json").read_text())["aims"]]
    missed = sum(not aim.met for aim in aims)
    judged = sum(aim.aim is not None for aim in aims)
    show("aims", f"{judged - missed} of {judged} aims met", [aim.row() for aim in aims])


def _print(title: str, rows: Sequence[Mapping[str, Any]], note: str = "") -> None:
    table = Table(title=title, caption=note, title_justify="left", caption_justify="left")
    for column in rows[0]:
        table.add_column(column, justify="left" if isinstance(rows[0][column], str) else "right")
    for row in rows:
        table.add_row(*(_text(value) for value in row.values()))
    Console(width=140).print(table)


def _unit(value: float, unit: str) -> str:
    if unit == "%" and value < 3:
        return f"{value:.0%}"
    return f"{value:,.3g} times" if unit in "%x" else f"{value:,.3g} {unit}" if value < 1000 else f"{value:,.0f} {unit}"


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else "" if value is None else str(value)
