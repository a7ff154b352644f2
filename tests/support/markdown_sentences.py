"""Pages of Markdown with one sentence on each line, so that a change of a sentence is a change of one line."""

from __future__ import annotations

import itertools
import re
from typing import NamedTuple

from markdown_it import MarkdownIt

PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
# Where a sentence may end: the mark, what closes with it, a blank, and what begins the next one.
_END = re.compile(r"[.?!](?:[)\]\"'”»*_]|\]\([^)\s]*\))*(?= +[\"'“(\[*_`]*[^\W\d_a-z]| +[\"'“(\[*_]*[`\d])")
_ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|etc|vs|cf|No|approx|ca|min|max|Dr|St)|…|\.\.)\.?$", re.IGNORECASE)
_KEPT = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)|<[^>\s][^>]*>", re.DOTALL)


class Paragraph(NamedTuple):
    """A paragraph of a page: its first line (from 0), the line after it, and its text without marks of lists."""

    first: int
    after: int
    text: str


def paragraphs(page: str) -> list[Paragraph]:
    """Return the paragraphs of a page, those of lists and quotations too; tables, headings and code are none."""
    tokens = PARSER.parse(page)
    return [
        Paragraph(opening.map[0], opening.map[1], inline.content)
        for opening, inline in itertools.pairwise(tokens)
        if opening.type == "paragraph_open" and opening.map
    ]


def sentences(text: str) -> list[str]:
    """Return the sentences of a paragraph. What stands between backticks is no end; a forced line break is one."""
    lines = []
    for part in re.split(r"(?: {2,}|(?<=\\))\n", text):
        joined = " ".join(part.split("\n"))
        hidden = _KEPT.sub(lambda kept: "`" + "x" * (len(kept[0]) - 2) + "`", joined)
        begin = 0
        for end in _END.finditer(hidden):
            if not _ABBREVIATION.search(hidden[begin : end.start()]):
                lines.append(joined[begin : end.end()].strip())
                begin = end.end()
        lines.append(joined[begin:].strip())
    return lines
