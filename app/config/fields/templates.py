"""Where an event goes: a text in which `{bucket}` and the like stand for what an event is about.

The grammar is closed: fixed text, the placeholders of `PLACEHOLDERS`, `{{` for a brace that opens and `}}` for one that
closes. Nothing else of an event, and nothing of this program, can be named.
"""

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple, Self

from app.config.errors import BadValue
from app.config.fields.field_types import FieldType
from app.events.model import Event

Encode = Callable[[str], str]

EMPTY = "_"  # in place of a value without a character: a word of a subject, for one, must have some
_CACHED_PLACES = 1024  # most events go to few places, and a lookup costs a tenth of writing and checking a place
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HOUR = 3_600_000  # milliseconds
_PART = re.compile(r"\{\{|\}\}|\{([a-z]{1,16})(?::([1-9]))?\}|[{}]")


@lru_cache(maxsize=1024)  # many events share an hour
def _hour(hours: int) -> str:
    return (_EPOCH + timedelta(hours=hours)).isoformat()[:13]  # 2026-11-26T13


@lru_cache(maxsize=256)  # there are few names
def _words(name: str) -> Sequence[str]:
    return [*name.split(":", 2), "", ""]


class Placeholder(NamedTuple):
    """What stands for a value of the event; `of_object`: it is the same for every event of an object."""

    value: Callable[[Event], str]
    of_object: bool
    about: str


PLACEHOLDERS = {
    "bucket": Placeholder(attrgetter("bucket"), True, "the bucket"),
    "key": Placeholder(attrgetter("key"), True, "the object's key"),
    "prefix:N": Placeholder(attrgetter("key"), True, "the first N folders of the key, 1 to 9, or all it has"),
    "name": Placeholder(lambda event: event.key.rpartition("/")[2], True, "what follows the key's last /"),
    "event": Placeholder(attrgetter("name"), False, "the event's name, s3:ObjectCreated:Put"),
    "kind": Placeholder(lambda event: _words(event.name)[1], False, "its second word, ObjectCreated"),
    "action": Placeholder(lambda event: _words(event.name)[2], False, "the rest of it, Put"),
    "year": Placeholder(lambda event: _hour(event.time // _HOUR)[:4], False, "of the event's time in UTC, 2026"),
    "month": Placeholder(lambda event: _hour(event.time // _HOUR)[:7], False, "2026-11"),
    "date": Placeholder(lambda event: _hour(event.time // _HOUR)[:10], False, "2026-11-26"),
    "hour": Placeholder(lambda event: _hour(event.time // _HOUR)[11:], False, "00 to 23"),
    "id": Placeholder(attrgetter("id"), False, "the event's id"),
}
_SAMPLE = Event("0" * 32, "s3:ObjectCreated:Put", "bucket", "a/b/c/d/e/f/g/h/i/name", "", "", 0, "{}")


def _folders(count: int) -> Callable[[Event], str]:
    return lambda event: "/".join(event.key.split("/", count)[:-1])


class Place(str):
    """Where a target's events go. As a text it is the place itself if that is fixed, else its template.

    A copy that was pickled is a plain text.
    """

    fixed: str | None  # the place of every event; None if it depends on the event
    varies: bool  # whether events of one object may have different places
    literals: Sequence[str]  # the fixed parts
    # Returns where an event goes. Raises `BadValue`, whose problem is a sentence, if that is no valid place.
    of: Callable[[Event], str]

    def __new__(cls, text: str, kind: FieldType[str], encode: Encode, name: str = "") -> Self:
        """Compile a text. Raises `BadValue`, with the position if something is wrong with the template.

        A template is tried with an event that has no peculiarities.
        """
        literals, names = _split(text)
        place = super().__new__(cls, text if names else literals[0])
        place.fixed = None if names else literals[0]
        place.varies = any(not PLACEHOLDERS[known].of_object for known, _ in names)
        place.literals = [literal for literal in literals if literal]
        values = [_folders(count) if count else PLACEHOLDERS[known].value for known, count in names]

        def joined(*given: str) -> str:
            parts = [literals[0]]
            for value, literal in zip(given, literals[1:], strict=True):
                parts += [encode(value) or EMPTY, literal]
            whole = "".join(parts)
            kind.parse(whole)
            return whole

        @lru_cache(maxsize=_CACHED_PLACES)
        def rendered(*given: str) -> str:
            try:
                return joined(*given)
            except BadValue as error:
                raise BadValue(f"{name} of this event {error.problem}", error.hint) from None

        if text:
            joined(*(value(_SAMPLE) for value in values))
        fixed = place.fixed
        place.of = _compiled(values, rendered) if fixed is None else lambda _: fixed
        return place

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


def _compiled(values: Sequence[Callable[[Event], str]], rendered: Callable[..., str]) -> Callable[[Event], str]:
    """Return a function of an event for one of its values; for few values one that makes no list of them."""
    if len(values) == 1:
        (only,) = values
        return lambda event: rendered(only(event))
    if len(values) == 2:
        first, last = values
        return lambda event: rendered(first(event), last(event))
    if len(values) == 3:
        first, second, last = values
        return lambda event: rendered(first(event), second(event), last(event))
    return lambda event: rendered(*[value(event) for value in values])


class Templated(FieldType[Place]):
    """A value of another type, or a template for one, whose values are encoded so that they can be parts of it.

    `of_object`: an object's events must have one place, so that only placeholders of the object are allowed.
    """

    def __init__(self, kind: FieldType[str], name: str, encode: Encode = str, *, of_object: bool = False) -> None:
        self._kind, self._name, self._encode, self._of_object = kind, name, encode, of_object
        self.label = f"{kind.label}, or a template"
        self.empty = Place("", kind, encode, name)

    def parse(self, text: str) -> Place:
        """Compile the text, and check the place it gives for an event without peculiarities."""
        place = Place(text, self._kind, self._encode, self._name)
        if self._of_object and place.varies:
            allowed = ", ".join(f"{{{name}}}" for name, known in PLACEHOLDERS.items() if known.of_object)
            raise BadValue("has a placeholder that is not the same for all events of an object", f"use {allowed}")
        return place


def escaped(text: str) -> str:
    """Return a template of this text alone."""
    return text.replace("{", "{{").replace("}", "}}")


def percent(unsafe: str) -> Encode:
    """Return how values are encoded whose characters of this class (of a regular expression) become `%XX`."""
    pattern = re.compile(unsafe)

    def one(match: re.Match[str]) -> str:
        return "".join(f"%{byte:02X}" for byte in match[0].encode(errors="replace"))

    return lambda value: pattern.sub(one, value)


def underscored(unsafe: str, *, lower: bool = False) -> Encode:
    """Return how values are encoded whose characters of this class become `_`: for places that cannot have `%`."""
    pattern = re.compile(unsafe)
    return lambda value: pattern.sub("_", value.lower() if lower else value)


def _split(text: str) -> tuple[list[str], list[tuple[str, int]]]:
    """Return the fixed parts, one more than placeholders, and the placeholders with their numbers, 0 for none."""
    literals, names = [""], []
    end = 0
    for match in _PART.finditer(text):
        literals[-1] += text[end : match.start()]
        end = match.end()
        if match[0] in ("{{", "}}"):
            literals[-1] += match[0][0]
            continue
        known = f"{match[1]}:N" if match[2] else match[1]
        if known not in PLACEHOLDERS:
            where = f"at character {match.start() + 1}"
            if match[1] is None:
                raise BadValue(f"has a single brace {where}", "write {{ or }} for a brace, {bucket} for the bucket")
            allowed = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
            raise BadValue(f"has an unknown placeholder {where}", f"known are {allowed}; write {{{{ for a brace")
        names.append((known, int(match[2] or 0)))
        literals.append("")
    literals[-1] += text[end:]
    return literals, names
