"""Print a command's results: tables and sentences for people, JSON for programs.

Rows are laid out as a table, or, where that is too wide, as one block of lines for each row. No line is wider than
asked. A word is broken only in a block, where it is longer than a line: after a separator such as `/` or `:` if it has
one.
"""

import os
import shlex
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click
import orjson

from app import logs

if TYPE_CHECKING:
    from rich.progress import Progress


T = TypeVar("T")
Row = Mapping[str, Any]
Cell = str | Callable[[Any], object]  # of a row: its member of this name, or what this makes of the row
Columns = Mapping[str, Cell]  # by their headers

printable = logs.printable  # commands print texts of any origin, as logs do
_GAP = "  "
_MAX_CELL_LINES = 4  # of a table: where a cell would need more, blocks are more legible
_MIN_WRAPPED_WIDTH = 16  # of a column whose cells take several lines
_MIN_VALUE_WIDTH = 24  # of a block: a narrower one has its values below their headers
_SEPARATORS = ("/:,;&?|", "=@._+-")  # after which a long word is broken: the strong ones if possible


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
        for line in lay_out_facts([(name, format_cell(value)) for name, value in facts.items()], terminal_width()):
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
    printed = lay_out(
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


class Column(NamedTuple):
    """A column: its header and its cells, from the first row to the last; numbers are aligned at their ends."""

    header: str
    cells: Sequence[str]
    numeric: bool = False

    @property
    def is_void(self) -> bool:
        """Whether it says nothing: every cell is empty, or is 0."""
        return not any(_says_something(cell, numeric=self.numeric) for cell in self.cells)


class Lines(NamedTuple):
    """Lines of text, of which the first `headers` are a table's head; the headers of the columns that had no room."""

    lines: Sequence[str]
    headers: int = 0
    omitted: Sequence[str] = ()


def lay_out(columns: Sequence[Column], width: int | None, dispensable: Sequence[str] = ()) -> Lines:
    """Return the lines of the rows; None is a width without limit, for a program that reads a row in each line.

    On a terminal a column that says nothing is left out, unless it is the first. `dispensable` are headers of columns
    without which a table that is too wide is more legible than blocks: the first is left out first.
    """
    kept = [column for number, column in enumerate(columns) if width is None or number == 0 or not column.is_void]
    if width is None:
        return _table(kept, [max(map(text_width, (column.header, *column.cells))) for column in kept])
    for count in range(len(dispensable) + 1):
        gone = dispensable[:count]
        shown = [column for column in kept if column.header not in gone]
        widths = _column_widths(shown, width)
        if widths is not None:
            return _table(shown, widths)._replace(omitted=[one.header for one in kept if one.header in gone])
    return Lines(list(_blocks(kept, width)))


def wrap(text: str, width: int) -> list[str]:
    """Wrap a text at its spaces; a word that is longer than a line is broken, after a separator if it has one."""
    lines: list[str] = []
    line, used = "", 0
    for word in text.split(" "):
        size = text_width(word)
        if lines or line:
            if used + 1 + size <= width:
                line, used = f"{line} {word}", used + 1 + size
                continue
            lines.append(line)
        *broken, line = [word] if size <= width else _break(word, width)
        lines += broken
        used = text_width(line)
    return [*lines, line]


def lay_out_facts(pairs: Sequence[tuple[str, str]], width: int | None) -> list[str]:
    """Return a line, or as many as are needed, for each name with its value."""
    return list(_pairs(pairs, width))


def hang(prefix: str, text: str, width: int | None) -> list[str]:
    """Wrap a text behind a prefix; its further lines begin below its first one."""
    indent = text_width(prefix)
    lines = wrap(text, max(width - indent, _MIN_VALUE_WIDTH)) if width else [text]
    return [prefix + lines[0], *(" " * indent + line for line in lines[1:])]


def text_width(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    return len(text) if text.isascii() else sum(map(_char_width, text))


def _char_width(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _says_something(cell: str, *, numeric: bool) -> bool:
    return bool(cell) and not (numeric and cell == "0")


def _column_widths(columns: Sequence[Column], width: int) -> list[int] | None:
    """Return the columns' widths in a table, None if no table of this width is legible."""
    natural = [max(map(text_width, (column.header, *column.cells))) for column in columns]
    room = width - len(_GAP) * (len(columns) - 1)
    # No narrower than its longest word.
    least = [
        max(
            max((text_width(word) for text in (column.header, *column.cells) for word in text.split(" ")), default=0),
            min(longest, 0 if column.numeric else _MIN_WRAPPED_WIDTH, max(map(text_width, column.cells))),
        )
        for column, longest in zip(columns, natural, strict=True)
    ]
    if sum(least) > room:
        return None
    widths = list(least)
    spare = room - sum(widths)
    while spare and (narrow := [i for i, longest in enumerate(natural) if widths[i] < longest]):
        share = max(spare // len(narrow), 1)
        for i in narrow[:spare]:
            more = min(share, natural[i] - widths[i])
            widths[i], spare = widths[i] + more, spare - more
    for column, size in zip(columns, widths, strict=True):
        if any(len(wrap(cell, size)) > _MAX_CELL_LINES for cell in column.cells):
            return None
    return widths


def _table(columns: Sequence[Column], widths: Sequence[int]) -> Lines:
    heads = [wrap(column.header, size) for column, size in zip(columns, widths, strict=True)]
    height = max(map(len, heads))
    heads = [[""] * (height - len(head)) + head for head in heads]
    lines = list(_cell_lines(columns, heads, widths))
    lines.append(_GAP.join("─" * size for size in widths))
    for row in zip(*(column.cells for column in columns), strict=True):
        lines += _cell_lines(columns, [wrap(cell, size) for cell, size in zip(row, widths, strict=True)], widths)
    return Lines(lines, height)


def _cell_lines(columns: Sequence[Column], cells: Sequence[Sequence[str]], widths: Sequence[int]) -> Iterator[str]:
    """Yield the lines of one row, whose cells may have several."""
    for number in range(max(map(len, cells))):
        texts = [cell[number] if number < len(cell) else "" for cell in cells]
        yield _GAP.join(
            _pad(text, size, right=column.numeric) for column, text, size in zip(columns, texts, widths, strict=True)
        ).rstrip()


def _pad(text: str, size: int, *, right: bool) -> str:
    padding = " " * (size - text_width(text))
    return padding + text if right else text + padding


def _blocks(columns: Sequence[Column], width: int) -> Iterator[str]:
    """Yield a block of lines for each row, with a line for each cell that says something."""
    for number, row in enumerate(zip(*(column.cells for column in columns), strict=True)):
        if number:
            yield ""
        pairs = [
            (column.header, cell)
            for position, (column, cell) in enumerate(zip(columns, row, strict=True))
            if position == 0 or _says_something(cell, numeric=column.numeric)
        ]
        yield from _pairs(pairs, width)


def _pairs(pairs: Sequence[tuple[str, str]], width: int | None) -> Iterator[str]:
    indent = max((text_width(name) for name, _ in pairs), default=0) + len(_GAP)
    if width and width - indent < _MIN_VALUE_WIDTH:
        for name, value in pairs:
            yield from wrap(name, width)
            yield from (f"{_GAP}{line}".rstrip() for line in wrap(value, width - len(_GAP)))
        return
    for name, value in pairs:
        first, *rest = wrap(value, width - indent) if width else [value]
        yield (_pad(name, indent, right=False) + first).rstrip()
        yield from (" " * indent + line for line in rest)


def _break(word: str, width: int) -> list[str]:
    """Break a word into lines, after separators as far as possible, the strong ones first."""
    lines: list[str] = []
    while text_width(word) > width:
        end = _fitting(word, width)
        strong, weak = (max(word.rfind(separator, 0, end) for separator in kind) + 1 for kind in _SEPARATORS)
        end = strong if strong > end // 2 else weak or strong or end
        lines.append(word[:end])
        word = word[end:]
    return [*lines, word]


def _fitting(text: str, width: int) -> int:
    """Return how many of the first characters fit into a width; at least one."""
    used = 0
    for position, char in enumerate(text):
        used += _char_width(char)
        if used > width:
            return max(position, 1)
    return len(text)
