"""Print a command's results: tables and sentences for people, JSON for programs."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import click
import orjson
import rich.box
import rich.console
import rich.progress
import rich.table
import rich.text

from app import logs

T = TypeVar("T")
Row = Mapping[str, Any]
Cell = str | Callable[[Any], object]  # of a row: its member of this name, or what this makes of the row
Columns = Mapping[str, Cell]  # by their headers

_FILE_WIDTH = 250
printable = logs.printable  # commands print texts of any origin, as logs do


class Output:
    """The results of a command, printed as JSON or as text."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json

    def rows(self, rows: Iterable[Row], columns: Columns, nothing: str = "") -> None:
        """Print rows: a JSON array with all their members, or a table of `columns`, by their headers."""
        rows = list(rows)
        if self.as_json:
            self.json(rows)
        elif not rows:
            click.echo(nothing or "nothing")
        else:
            table = rich.table.Table(box=rich.box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
            values = [[cell(row) if callable(cell) else row[cell] for row in rows] for cell in columns.values()]
            for header, column in zip(columns, values, strict=True):
                numeric = all(isinstance(value, int) for value in column)
                table.add_column(header, justify="right" if numeric else "left", overflow="fold")
            for row in zip(*values, strict=True):
                table.add_row(*(rich.text.Text(format_cell(value)) for value in row))
            console().print(table)

    def json(self, value: object) -> None:
        """Print a value as JSON."""
        click.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())

    def done(self, sentence: str, **facts: object) -> None:
        """Print that something was done: a sentence for people, `facts` for programs."""
        if self.as_json:
            self.json(facts)
        else:
            click.echo(printable(sentence))


def console() -> rich.console.Console:
    """Return the console for tables; in a file or a pipe they are not folded to a terminal's width."""
    plain = rich.console.Console(soft_wrap=False, highlight=False, emoji=False, markup=False)
    if not plain.is_terminal:
        plain.width = _FILE_WIDTH
    return plain


def progress(output: Output, what: str, items: Iterable[T], total: int) -> Iterator[T]:
    """Yield the items and show a progress bar on a terminal."""
    with bar(output) as progress_bar:
        yield from progress_bar.track(items, total, description=what)


def bar(output: Output) -> rich.progress.Progress:
    """Return a progress bar on standard error; hidden with --json or where standard error is no terminal."""
    stderr = rich.console.Console(stderr=True)
    return rich.progress.Progress(console=stderr, disable=output.as_json or not stderr.is_terminal, transient=True)


def format_cell(value: object) -> str:
    """Return a table's cell."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case list() | tuple():
            return ", ".join(map(format_cell, value))
        case _:
            return printable(str(value))


def columns(*names: str) -> Mapping[str, str]:
    """Return columns whose headers are the names of their members."""
    return {name.replace("_", " "): name for name in names}


def count_noun(number: int, noun: str) -> str:
    """Return `1 event`, `2 events`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
