"""Print a command's results: tables and sentences for people, JSON for programs."""

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click
import orjson

from app import logs
from app.cli_common import layout
from app.cli_common.layout import Column

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")
Row = Mapping[str, Any]
Cell = str | Callable[[Any], object]  # of a row: its member of this name, or what this makes of the row
Columns = Mapping[str, Cell]  # by their headers

printable = logs.printable  # commands print texts of any origin, as logs do


class Output:
    """The results of a command, printed as JSON or as text."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json

    def rows(
        self, rows: Iterable[Row], columns: Columns, nothing: str = "", *, dispensable: Sequence[str] = ()
    ) -> None:
        """Print rows: a JSON array with all their members, or a table of `columns`, by their headers.

        Where a table is too wide, its `dispensable` columns go first, and a line on standard error names them.
        """
        rows = list(rows)
        if self.as_json:
            self.json(rows)
        elif not rows:
            click.echo(nothing or "nothing")
        else:
            _print_rows(rows, columns, dispensable)

    def facts(self, facts: Mapping[str, object]) -> None:
        """Print the members of one thing, each with its name."""
        for line in layout.facts([(name, format_cell(value)) for name, value in facts.items()], terminal_width()):
            click.echo(line)

    def json(self, value: object) -> None:
        """Print a value as JSON."""
        click.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())

    def done(self, sentence: str, **facts: object) -> None:
        """Print that something was done: a sentence for people, `facts` for programs."""
        if self.as_json:
            self.json(facts)
        else:
            click.echo(printable(sentence))


def terminal_width() -> int | None:
    """Return the width of the lines that are printed; None in a file or a pipe, where they are not wrapped.

    `COLUMNS` sets it anywhere, as `watch` does.
    """
    if os.environ.get("COLUMNS", "").isdecimal() or sys.stdout.isatty():
        return max(shutil.get_terminal_size().columns, 20)
    return None


def progress(output: Output, what: str, items: Iterable[T], total: int) -> Iterator[T]:
    """Yield the items and show a progress bar on a terminal."""
    with bar(output) as progress_bar:
        yield from progress_bar.track(items, total, description=what)


def bar(output: Output) -> "Progress":
    """Return a progress bar on standard error; hidden with --json or where standard error is no terminal."""
    from rich.console import Console  # noqa: PLC0415 - slow: few commands have one
    from rich.progress import Progress  # noqa: PLC0415 - as above

    stderr = Console(stderr=True)
    return Progress(console=stderr, disable=output.as_json or not stderr.is_terminal, transient=True)


def _print_rows(rows: list[Row], columns: Columns, dispensable: Sequence[str]) -> None:
    values = {header: [cell(row) if callable(cell) else row[cell] for row in rows] for header, cell in columns.items()}
    printed = layout.lay_out(
        [
            Column(header, list(map(format_cell, cells)), numeric=all(isinstance(cell, int) for cell in cells))
            for header, cells in values.items()
        ],
        terminal_width(),
        dispensable,
    )
    for number, line in enumerate(printed.lines):
        click.echo(click.style(line, bold=True) if number < printed.headers else line)
    if printed.omitted:
        click.echo(f"not shown in so narrow a terminal: {', '.join(printed.omitted)}", err=True)


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


def mending_command(text: str, words: Sequence[str]) -> str:
    """Return the command that a finding names beside its text, as a shell takes it; empty if the text has it."""
    command = shlex.join(["bucketwire", *words]) if words else ""
    return "" if command in text else f"$ {command}"


def step_line(step: str, message: str, *, ok: bool, seconds: float | None = None) -> str:
    """Return the line of a step; the message must be printable already."""
    took = "" if seconds is None else f"{seconds * 1000:8.1f} ms  "
    return f"{step:>8}  {'ok' if ok else 'failed':<6}  {took}{message}"


def print_exchange(exchange: dict[str, Any] | None) -> None:
    """Print a request and its answer as they went over the wire; nothing if there is none."""
    if exchange is None:
        return
    for name, message in (("request", exchange["request"]), ("answer", exchange["response"])):
        click.echo(f"\n{name} of the failed attempt at {exchange['at']}" + ("" if message else ": none"))
        for line in _lines(message) if message else ():
            click.echo(f"  {printable(line)}".rstrip())


def _lines(message: dict[str, Any]) -> Iterator[str]:
    yield message["line"]
    yield from (f"{name}: {value}" for name, value in message["headers"].items())
    yield ""
    yield from message["body"].splitlines()
    if (shown := len(message["body"].encode())) < message["size"]:
        yield f"({shown:,} of {message['size']:,} bytes)"
