"""Targets as lines of `notify_<section>[:<name>] key=value …` (reference §3.1).

As MinIO: a value may contain blanks without quotes, `"…"` or `'…'` around it are taken off, and so is one pair of each.
Unlike MinIO: what is in quotes is never split, and an unknown key is refused instead of becoming part of the value
before it.
"""

import re
from collections.abc import Mapping

from app.config.arn import UNNAMED, TargetId
from app.config.errors import BadSettings, BadValue, Problem, did_you_mean
from app.config.fields.fields import fields_of, shown, texts_of
from app.config.targets.base import TargetSettings
from app.config.targets.registry import TYPES, settings_type

_SECTION = re.compile(r"(?P<section>[^\s:]+)(?P<colon>:(?P<name>\S*))?\s*")
_KEY = re.compile(r"([A-Za-z][A-Za-z0-9_]*)=")
_END = re.compile(rf"\s+(?={_KEY.pattern})|\s*$")
_QUOTES = ("", '"', "'", "\"'")


def parse_line(text: str) -> tuple[TargetId, dict[str, str]]:
    """The target that a line sets, and the texts by the names of today; `enable` is on unless it is given.

    Raises `BadSettings` for what is no line, no target or no key; whether the values are right shows when they are
    loaded. An empty value stands for the default.
    """
    text = re.sub(r"\\\r?\n", " ", text).strip()
    head = _SECTION.match(text)
    if not head:
        raise _bad("line", "is empty", "write notify_<type>[:<name>] key=value …")
    cls = _type_of(head["section"])
    try:
        target = TargetId(cls.type_name, head["name"] if head["colon"] else UNNAMED)
    except BadValue as error:
        raise BadSettings([Problem("name", head["name"], error.problem, error.hint)]) from None
    values, problems = texts_of(cls, _pairs(text[head.end() :]))
    if problems:
        raise BadSettings([_with_quotes(problem) for problem in problems], str(target))
    return target, {"enable": "on"} | values


def parse_lines(text: str) -> list[tuple[TargetId, dict[str, str]]]:
    """The targets of a whole text; empty lines and those that begin with `#` are skipped, `\\` continues a line.

    Raises `BadSettings` with the problems of all lines, each with its number.
    """
    found = []
    problems: list[Problem] = []
    number = 1
    for line in re.split(r"(?<!\\)\r?\n", text):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                found.append(parse_line(line))
            except BadSettings as error:
                problems += [Problem(f"line {number}: {p.key}", p.value, p.problem, p.hint) for p in error.problems]
        number += line.count("\n") + 1
    if problems:
        raise BadSettings(problems)
    return found


def to_line(target: TargetId, values: Mapping[str, str], *, redact: bool = True) -> str:
    """The line that sets a target, keys in the order of their declaration.

    With `redact`, secrets are `*redacted*`: such a line keeps those that are stored when it is read back. Raises
    `BadSettings` for a value that no line can hold.
    """
    cls = settings_type(target.type)
    texts = shown(cls, values) if redact else values
    order = {name: place for place, name in enumerate(fields_of(cls))}
    head = cls.section if target.name == UNNAMED else f"{cls.section}:{target.name}"
    named = sorted(texts.items(), key=lambda item: order.get(item[0], len(order)))
    return " ".join([head, *(f"{name}={_quoted(name, text)}" for name, text in named)])


def _type_of(section: str) -> type[TargetSettings]:
    sections = {cls.section: cls for cls in TYPES.values()}
    if section not in sections:
        raise _bad(section, "is no section here", did_you_mean(section, list(sections)))
    return sections[section]


def _pairs(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    position = 0
    while position < len(text):
        match = _KEY.match(text, position)
        if not match:
            raise _bad("line", "has no key=value where one has to be", "write key=value, without blanks around the =")
        name = match[1]
        value, position = _value(name, text, match.end())
        if name in found:
            raise _bad(name, "is given twice", "give it once")
        found[name] = value
    return found


def _value(name: str, text: str, start: int) -> tuple[str, int]:
    """A value and where the next key begins."""
    quote = text[start : start + 1]
    if quote in ('"', "'"):
        end = re.compile(f"{quote}(?:{_END.pattern})").search(text, start + 1)
        if not end:
            raise _bad(name, "has a quote that is not closed", "close it before the next key")
        inner = text[start + 1 : end.start()].strip()
        if quote == '"' and len(inner) > 1 and inner[0] == inner[-1] == "'":
            inner = inner[1:-1].strip()
        return inner, end.end()
    end = _END.search(text, start)
    return (text[start : end.start()], end.end()) if end else (text[start:], len(text))


def _quoted(name: str, text: str) -> str:
    if text == "":
        return '""'
    # A backslash before the end of a line would continue it.
    for quote in _QUOTES[text.endswith("\\") :] if not re.search(r"[\r\n]", text) else ():
        written = quote + text + quote[::-1]
        try:
            # A key on either side shows that the value neither takes in nor gives away its neighbours.
            if _pairs(f"a={written} b=c") == {"a": text, "b": "c"} and _pairs(f"a={written}") == {"a": text}:
                return written
        except BadSettings:
            continue
    raise _bad(name, "cannot be written in a line", "set it by a variable or by the API")


def _with_quotes(problem: Problem) -> Problem:
    hint = f'{problem.hint} If it belongs to the value before it, put that value in double quotes: key="a b=c"'
    return Problem(problem.key, problem.value, problem.problem, hint.strip())


def _bad(key: str, problem: str, hint: str) -> BadSettings:
    return BadSettings([Problem(key, "", problem, hint)])
