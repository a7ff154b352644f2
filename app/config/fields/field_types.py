"""The types of settings: how a text is parsed, and the error if it is invalid (reference §3.3).

Error messages never quote the text, because any key may be a secret. An empty text means no value: `parse` never gets
it, and the key's default is used instead.
"""

import posixpath
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import ClassVar, Generic, Literal, TypeVar

from app.config.errors import BadValue
from app.config.fields.secret_refs import is_secret_ref

T = TypeVar("T")
L = TypeVar("L", bound=str)

_TRUE = frozenset(["1", "t", "T", "true", "TRUE", "True", "on", "ON", "On"])
_FALSE = frozenset(["0", "f", "F", "false", "FALSE", "False", "off", "OFF", "Off"])
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class FieldType(Generic[T]):
    """How one type of value is parsed from text."""

    label: str  # its name on the reference page
    empty: T  # the placeholder for a required value that is missing because the target is disabled
    holds_secrets = False  # whether a value may contain a secret; it may then be a reference to a secret
    is_sealed = False  # whether a value is encrypted at rest even if all of it is shown
    has_colons = False  # whether a value may begin with `env:` or `file:` without being a reference
    separator = ""  # between the values of a list, for types that are lists
    is_mapping = False  # whether a value may be given as an object of texts
    pairs: ClassVar[frozenset[str]] = frozenset()  # the keys of a value that is `key=value key=value` itself

    def parse(self, text: str) -> T:
        """Parse a text without surrounding spaces. Raises `BadValue`."""
        raise NotImplementedError

    def shown(self, text: str) -> str:
        """Return the text as it may be printed; types that can contain a password redact it."""
        return text

    def secrets_in(self, value: T) -> Iterator[str]:  # noqa: ARG002 (for types that can contain a secret)
        """Yield the secrets within a value, in each form in which a remote or a driver may repeat them."""
        return iter(())

    def resolve(self, text: str, resolve: Callable[[str], str]) -> str:
        """Return the text with secrets in place of references, by `resolve`; for types with secrets."""
        return resolve(text) if is_secret_ref(text) or not self.has_colons else text

    def restored(self, text: str, stored: str) -> str:  # noqa: ARG002 (for types with several secrets)
        """Return a text in which `*redacted*` stands for parts of the stored one, with these parts."""
        return text


class Text(FieldType[str]):
    """Any text without control characters."""

    label = "text"
    empty = ""

    def __init__(self, *, ascii_only: bool = False, max_characters: int = 8192) -> None:
        self._ascii_only = ascii_only
        self._max_characters = max_characters

    def parse(self, text: str) -> str:
        if _CONTROL.search(text):
            raise BadValue("contains a control character", "a value is one line of printable text")
        if self._ascii_only and not text.isascii():
            raise BadValue("contains a character outside ASCII", "it is sent in a header, which takes ASCII only")
        if len(text) > self._max_characters:
            raise BadValue(f"is longer than {self._max_characters} characters", "shorten it")
        return text


class Toggle(FieldType[bool]):
    """On or off in the spellings of MinIO's `enable`; any other spelling is refused, not read as off (§10)."""

    label = "on/off"
    empty = False

    def parse(self, text: str) -> bool:
        if text in _TRUE or text.lower() == "enabled":
            return True
        if text in _FALSE or text.lower() == "disabled":
            return False
        raise BadValue("is neither on nor off", "write on or off")


class Number(FieldType[int]):
    """A decimal integer between two bounds."""

    label = "number"
    empty = 0

    def __init__(self, minimum: int = 0, maximum: int = 2**53) -> None:
        self._minimum = minimum
        self._maximum = maximum

    def parse(self, text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,20}", text):
            raise BadValue("is not a whole number", "write decimal digits")
        number = int(text)
        _check_bounds(number, self._minimum, self._maximum, lambda bound: f"{bound:.0f}")
        return number


class Duration(FieldType[float]):
    """A length of time as Go writes it, `300ms`, `10s`, `1h30m`, and in days, `7d`. The value is in seconds."""

    label = "duration"
    empty = 0.0
    _UNITS: ClassVar[dict[str, Decimal]] = {
        unit: Decimal(seconds)
        for unit, seconds in {
            "ns": "1e-9", "us": "1e-6", "µs": "1e-6", "μs": "1e-6", "ms": "1e-3", "s": "1", "m": "60", "h": "3600",
            "d": "86400",
        }.items()
    }  # fmt: skip

    def __init__(self, minimum: float = 0, maximum: float = 10 * 365 * 86400) -> None:
        self._minimum = minimum
        self._maximum = maximum

    def parse(self, text: str) -> float:
        units = "|".join(sorted(self._UNITS, key=len, reverse=True))
        part = rf"([0-9]{{1,20}}(?:\.[0-9]{{0,20}})?|\.[0-9]{{1,20}})({units})"
        parts = re.findall(part, text) if re.fullmatch(rf"(?:{part}){{1,20}}", text) else []
        if text != "0" and not parts:
            raise BadValue("is not a duration", "write a number with its unit, such as 300ms, 10s, 2m, 1h30m or 7d")
        seconds = sum((Decimal(number) * self._UNITS[unit] for number, unit in parts), Decimal(0))
        _check_bounds(float(seconds), self._minimum, self._maximum, written_duration)
        return float(seconds)


class Size(FieldType[int]):
    """A number of bytes, plain or with `KiB`, `MiB`, `GiB`."""

    label = "size"
    empty = 0
    _UNITS: ClassVar[dict[str, int]] = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}

    def __init__(self, minimum: int, maximum: int) -> None:
        self._minimum = minimum
        self._maximum = maximum

    def parse(self, text: str) -> int:
        match = re.fullmatch(r"([0-9]{1,16}) ?(KiB|MiB|GiB|)", text)
        if not match:
            raise BadValue("is not a size", "write bytes, or a number with KiB, MiB or GiB, such as 64MiB")
        size = int(match[1]) * self._UNITS[match[2]]
        _check_bounds(size, self._minimum, self._maximum, lambda bound: f"{bound:.0f} bytes")
        return size


class Choice(FieldType[L]):
    """One of a few words, in any case (MinIO accepts any case and then ignores what is not lower case, §4.1)."""

    def __init__(self, *words: L) -> None:
        self.words = words
        self.label = " or ".join(f"`{word}`" for word in words)
        self.empty = words[0]

    def parse(self, text: str) -> L:
        """Return the word as it is declared."""
        for word in self.words:
            if text.casefold() == word.casefold():
                return word
        raise BadValue("is not one of the choices", f"write {' or '.join(self.words)}")


class Values(FieldType[tuple[str, ...]]):
    """Comma-separated values."""

    label = "comma-separated values"
    empty = ()

    def parse(self, text: str) -> tuple[str, ...]:
        """Return the values, without the spaces around them."""
        return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


class Switch(FieldType[Literal["on", "off", ""]]):
    """On, off, or empty for the service's setting."""

    label = "on/off, or empty"
    empty: Literal["on", "off", ""] = ""

    def parse(self, text: str) -> Literal["on", "off", ""]:
        """Return `on` or `off`, whatever the spelling."""
        return "on" if Toggle().parse(text) else "off"


class Path(FieldType[str]):
    """An absolute path. Its existence is not checked: it may be on another machine."""

    label = "absolute path"
    empty = ""

    def parse(self, text: str) -> str:
        """Return the path without doubled slashes and dots."""
        if _CONTROL.search(text):
            raise BadValue("contains a control character", "write the path as it is on disk")
        if not text.startswith("/"):
            raise BadValue("is not an absolute path", "begin it with /")
        return posixpath.normpath("/" + text.lstrip("/"))


def written_duration(seconds: float) -> str:
    """Format a duration as `Duration` parses it, for messages and pages."""
    if 0 < seconds < 1:
        return f"{seconds * 1000:g}ms"
    for size, unit in ((3600, "h"), (60, "m")):
        if seconds and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"


def written_size(size: int) -> str:
    """Format a number of bytes as `Size` parses it, in the largest unit that is exact."""
    for exponent, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size and size % 2**exponent == 0:
            return f"{size >> exponent}{unit}"
    return str(size)


def _check_bounds(value: float, minimum: float, maximum: float, written: Callable[[float], str]) -> None:
    if not minimum <= value <= maximum:
        raise BadValue("is out of range", f"write a value from {written(minimum)} to {written(maximum)}")
