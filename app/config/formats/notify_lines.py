"""Parse, write and describe targets as lines of `notify_<section>[:<name>] key=value …` (reference §3.1).

Lines of the section `api`, which stand beside those of targets, are parsed here too.

As in MinIO, a value may contain spaces without quotes; `"…"` or `'…'` around it, or one pair of each, is removed.
Unlike MinIO, a quoted value is never split, and an unknown key is refused instead of becoming part of the previous
value. A shell removes the quotes around `connection_string="host=h port=1"`: the keywords of libpq that follow an
unquoted connection string belong to it.

Sections and their keys are described as `mc admin config` does, from the declarations.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from app.config.api_settings import SECTION, ApiSettings, api_texts
from app.config.arn import UNNAMED, TargetId
from app.config.declared_types import section_type, settings_type
from app.config.errors import BadSettings, BadValue, Problem
from app.config.fields import fields
from app.config.fields.fields import Field, fields_of
from app.config.formats.environment import variable
from app.config.targets.base import TargetSettings, ordered_fields

_SECTION = re.compile(r"(?P<section>[^\s:]+)(?P<colon>:(?P<name>\S*))?\s*")
_OPTIONAL_NAME = re.compile(r"(?P<section>[a-z_]+)\[:?\w*\]")  # as MinIO's guides and help write it
_KEY = re.compile(r"([A-Za-z][A-Za-z0-9_]*)=")
_END = re.compile(rf"(?<!\s)(?:\s+(?={_KEY.pattern})|\s*$)")  # looked for at the first of several spaces only
_NO_INNER_KEYS: Mapping[str, frozenset[str]] = {}
_QUOTES = ("", '"', "'", "\"'")
_QUOTES_OF_WORDS = ('"', "'", "\"'", "")


def parse_line(text: str) -> tuple[TargetId, dict[str, str]]:
    """Parse a line into its target and its texts by their current names; `enable` is on unless it is given.

    Raises `BadSettings` for an invalid line, target or key; the values are checked when they are loaded. An empty value
    means the default.
    """
    text = re.sub(r"\\\r?\n", " ", text).strip()
    head = _SECTION.match(text)
    if not head:
        raise _bad("line", "is empty", "write notify_<type>[:<name>] key=value …")
    if placeholder := _OPTIONAL_NAME.match(text):
        section = placeholder["section"]
        hint = f"write {section}:NAME, or {section} for the unnamed target"
        raise _bad(placeholder[0], "has a placeholder where the target's name belongs", hint)
    cls = section_type(head["section"])
    try:
        target = TargetId(cls.type_name, head["name"] if head["colon"] else UNNAMED)
    except BadValue as error:
        raise BadSettings([Problem("name", head["name"], error.problem, error.hint)]) from None
    values, problems = fields.texts_of(cls, parse_pairs(text[head.end() :], _inner_keys(cls)))
    if problems:
        raise BadSettings([_add_quoting_hint(problem) for problem in problems], str(target))
    return target, {"enable": "on"} | values


def parse_lines(text: str) -> list[tuple[TargetId, dict[str, str]]]:
    """Parse every line of a text; empty lines and lines that begin with `#` are skipped, `\\` continues a line.

    Raises `BadSettings` with the problems of all lines, each with its line number.
    """
    targets = []
    problems: list[Problem] = []
    number = 1
    for line in re.split(r"(?<!\\)\r?\n", text):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                targets.append(parse_line(line))
            except BadSettings as error:
                problems += [Problem(f"line {number}: {p.key}", p.value, p.problem, p.hint) for p in error.problems]
        number += line.count("\n") + 1
    if problems:
        raise BadSettings(problems)
    return targets


def to_line(target: TargetId, values: Mapping[str, str], *, redact: bool = True) -> str:
    """Write the line that sets a target as MinIO writes it: its type's own keys before those of every target.

    With `redact`, secrets are `*redacted*`: setting such a line keeps the stored secrets. Raises `BadSettings` for a
    value that cannot be written in a line.
    """
    cls = settings_type(target.type)
    texts = fields.redact(cls, values) if redact else values
    order = {name: position for position, name in enumerate(ordered_fields(cls))}
    head = cls.section if target.name == UNNAMED else f"{cls.section}:{target.name}"
    ordered = sorted(texts.items(), key=lambda item: order.get(item[0], len(order)))
    return " ".join([head, *(f"{name}={_quote(name, text)}" for name, text in ordered)])


def _inner_keys(cls: type[TargetSettings]) -> dict[str, frozenset[str]]:
    """Return the settings whose values are pairs themselves, with the keys of those."""
    return {name: key.kind.pairs for name, key in fields.fields_of(cls).items() if key.kind.pairs}


def parse_pairs(text: str, inner: Mapping[str, frozenset[str]] = _NO_INNER_KEYS) -> dict[str, str]:
    """Parse `key=value …`, whatever the keys; `inner` has keys whose values may be pairs themselves.

    Raises `BadSettings`.
    """
    pairs: dict[str, str] = {}
    position = 0
    while position < len(text):
        match = _KEY.match(text, position)
        if not match:
            raise _bad("line", "has text that is not key=value", "write key=value, without spaces around the =")
        name = match[1]
        value, position = _parse_value(name, text, match.end(), inner.get(name, frozenset()))
        if name in pairs:
            raise _bad(name, "is given twice", "give it once")
        pairs[name] = value
    return pairs


def _parse_value(name: str, text: str, start: int, inner_keys: frozenset[str]) -> tuple[str, int]:
    """Parse a value, which may contain `inner_keys`; return it and the position of the next key."""
    quote = text[start : start + 1]
    if quote in ('"', "'"):
        end = re.compile(f"{quote}(?:{_END.pattern})").search(text, start + 1)
        if not end:
            raise _bad(name, "has a quote that is not closed", "close it before the next key")
        inner = text[start + 1 : end.start()].strip()
        if quote == '"' and len(inner) > 1 and inner[0] == inner[-1] == "'":
            inner = inner[1:-1].strip()
        return inner, end.end()
    for end in _END.finditer(text, start):
        following = _KEY.match(text, end.end())
        if not following or following[1] not in inner_keys:
            return text[start : end.start()], end.end()
    return text[start:], len(text)


def _quote(name: str, text: str) -> str:
    if re.search(r"[\r\n]", text):
        quotes: tuple[str, ...] = ()
    elif re.search(r"\s", text):
        quotes = _QUOTES_OF_WORDS  # `mc --json` reads a value with spaces only within double quotes
    else:
        quotes = _QUOTES
    for quote in quotes:
        if not quote and text.endswith("\\"):
            continue  # before the end of a line it would continue the line
        written = quote + text + quote[::-1]
        try:
            # Parse it alone and with a key after it, to check that the value is not mixed up with its neighbours.
            if parse_pairs(f"a={written} b=c") == {"a": text, "b": "c"} and parse_pairs(f"a={written}") == {"a": text}:
                return written
        except BadSettings:
            continue
    raise _bad(name, "cannot be written in a line", "set it by a variable or by the API")


def _add_quoting_hint(problem: Problem) -> Problem:
    hint = f'{problem.hint} If it belongs to the value before it, put that value in double quotes: key="a b=c"'
    return Problem(problem.key, problem.value, problem.problem, hint.strip())


def _bad(key: str, problem: str, hint: str) -> BadSettings:
    return BadSettings([Problem(key, "", problem, hint)])


_HEAD = re.compile(rf"\s*{SECTION}(?=\s|$)")


def is_api_line(text: str) -> bool:
    """Return whether a line is of the section `api`."""
    return _HEAD.match(text) is not None


def parse_api_line(text: str, *, backup: bool = False) -> dict[str, str]:
    """Parse one line into texts as `api_texts` returns them. Raises `BadSettings`."""
    line = re.sub(r"\\\r?\n", " ", text).strip()
    head = _HEAD.match(line)
    return api_texts(parse_pairs(line[head.end() if head else 0 :].strip()), backup=backup)


def take_api_lines(text: str, *, backup: bool = False) -> tuple[dict[str, str], str]:
    """Return the texts of the section's lines, and the other lines, which keep their numbers.

    Raises `BadSettings` with the number of the first invalid line.
    """
    texts: dict[str, str] = {}
    others = []
    number = 1
    for line in re.split(r"(?<!\\)\r?\n", text):
        lines = line.count("\n")
        if is_api_line(line):
            try:
                texts |= parse_api_line(line, backup=backup)
            except BadSettings as error:
                raise BadSettings(
                    [Problem(f"line {number}: {p.key}", p.value, p.problem, p.hint) for p in error.problems]
                ) from None
            line = "\n" * lines  # noqa: PLW2901 - the line is replaced
        others.append(line)
        number += lines + 1
    return texts, "\n".join(others)


# As MinIO describes its sections, which the guides show; all others are "<title> endpoints".
_RECEIVERS = {
    "mysql": "MySQL databases",
    "postgresql": "Postgres databases",
    "redis": "Redis datastores",
    "webhook": "webhook endpoints",
}


@dataclass(frozen=True, slots=True)
class KeyHelp:
    """One key of a section: its name or its variable, the type of its values, and what it means."""

    name: str
    kind: str
    about: str
    mandatory: bool


def describe_section(cls: type[TargetSettings]) -> str:
    """Return one line about a section."""
    return f"publish bucket notifications to {_RECEIVERS.get(cls.type_name, f'{cls.title} endpoints')}"


def key_helps(cls: type[TargetSettings], *, variables: bool = False) -> dict[str, KeyHelp]:
    """Return the help of a section's keys by their names; with `variables` the keys are environment variables.

    A target of the environment exists only if it is enabled there, so the variable of `enable` is mandatory.
    """
    return {
        name: KeyHelp(
            name=variable(cls, name) if variables else name,
            kind=_kind(key),
            about=_about(key),
            mandatory=key.required or (variables and name == "enable"),
        )
        for name, key in ordered_fields(cls).items()
    }


def api_helps(*, variables: bool = False) -> dict[str, KeyHelp]:
    """Return the help of the section `api`, as `key_helps` does."""
    return {
        name: KeyHelp(key.env if variables else name, _kind(key), _about(key), mandatory=False)
        for name, key in fields_of(ApiSettings).items()
    }


def _kind(key: Field) -> str:
    label = key.kind.label.removesuffix(", or empty").replace("on/off", "on|off")
    return label.replace("` or `", "|").replace("`", "")


def _about(key: Field) -> str:
    about = key.about.replace("`", "'")
    return f"{about}, default is '{key.default}'" if key.default else about
