"""Lay out rows as a table, or, where that is too wide, as one block of lines for each row.

No line is wider than asked. A word is broken only in a block, where it is longer than a line: after a separator such as
`/` or `:` if it has one.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_GAP = "  "
_MAX_CELL_LINES = 4  # of a table: where a cell would need more, blocks are more legible
_MIN_WRAPPED_WIDTH = 16  # of a column whose cells take several lines
_MIN_VALUE_WIDTH = 24  # of a block: a narrower one has its values below their headers
_SEPARATORS = ("/:,;&?|", "=@._+-")  # after which a long word is broken: the strong ones if possible


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


def facts(pairs: Sequence[tuple[str, str]], width: int | None) -> list[str]:
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
    lines = list(_lines(columns, heads, widths))
    lines.append(_GAP.join("─" * size for size in widths))
    for row in zip(*(column.cells for column in columns), strict=True):
        lines += _lines(columns, [wrap(cell, size) for cell, size in zip(row, widths, strict=True)], widths)
    return Lines(lines, height)


def _lines(columns: Sequence[Column], cells: Sequence[Sequence[str]], widths: Sequence[int]) -> Iterator[str]:
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
