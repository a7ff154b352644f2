"""Hide secrets in a text of a remote, which may write them as JSON, HTML or a URL does."""

import re
from collections.abc import Callable, Iterable
from functools import cached_property

from app.config.errors import REDACTED

# HTML's names of characters. It may write any character by its number, too.
_NAMES = {"&": "amp", "<": "lt", ">": "gt", '"': "quot", "'": "apos", "/": "sol"}
_HIGHEST_BMP = 0xFFFF  # JSON writes a character above it as two
_MARKS = "\\&%"  # with which JSON, HTML and URLs begin what is not written as it is, except a space


class SecretTexts:
    """Some secrets; of two that begin alike the longer one is found first.

    At each place of a text each way of writing has one reading, so a search never takes back more than a step.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = sorted(set(filter(None, secrets)), key=len, reverse=True)
        self._marks = _MARKS + "+" if any(" " in secret for secret in self._secrets) else _MARKS
        self._plain = re.compile("|".join(map(re.escape, self._secrets))) if self._secrets else None

    def __bool__(self) -> bool:
        return self._plain is not None

    def hide(self, text: str) -> str:
        """Return the text without the secrets."""
        if self._plain is None:
            return text
        pattern = self._written if any(mark in text for mark in self._marks) else self._plain
        return pattern.sub(REDACTED, text)

    @cached_property
    def _written(self) -> re.Pattern[str]:
        """The pattern of the secrets as they may be written; it takes milliseconds to make, and few texts need it."""
        spellings = (re.escape, _in_json, _in_html, _in_url)
        ways = ("".join(map(_spelled(spelling), secret)) for secret in self._secrets for spelling in spellings)
        return re.compile("|".join(dict.fromkeys(ways)))


def _spelled(spelling: Callable[[str], str]) -> Callable[[str], str]:
    # No encoder writes these in another way.
    return lambda letter: letter if letter.isascii() and letter.isalnum() else spelling(letter)


def _in_json(letter: str) -> str:
    code = ord(letter)
    units = [code] if code <= _HIGHEST_BMP else [0xD7C0 + (code >> 10), 0xDC00 + (code & 0x3FF)]
    ways = ["(?i:" + "".join(rf"\\u{unit:04x}" for unit in units) + ")"]
    short = {"\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}.get(letter, letter)
    if short != letter or letter in '\\"/':
        ways.append(re.escape("\\" + short))
    if letter != "\\":  # which is never written as it is
        ways.append(re.escape(letter))
    return f"(?:{'|'.join(ways)})"


def _in_html(letter: str) -> str:
    ways = [f"&#0*{ord(letter)};", f"(?i:&#x0*{ord(letter):x};)"]
    if letter in _NAMES:
        ways.append(f"&{_NAMES[letter]};")
    if letter != "&":
        ways.append(re.escape(letter))
    return f"(?:{'|'.join(ways)})"


def _in_url(letter: str) -> str:
    ways = ["(?i:" + "".join(f"%{byte:02x}" for byte in letter.encode(errors="replace")) + ")"]
    if letter == " ":
        ways.append(r"\+")
    if letter != "%":
        ways.append(re.escape(letter))
    return f"(?:{'|'.join(ways)})"
