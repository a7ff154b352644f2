"""Hide secrets in a text of a remote, which may write them as JSON, HTML or a URL does.

A text is decoded in each of these ways, and a secret is looked for in what it says then. That takes time linear in the
text, whatever text and secrets are: a pattern took 6.5 s for a secret of 4,000 `/` and an answer of 20,000.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from app.config.errors import REDACTED
from app.config.fields.fields import Declared

_NAMES = {b"amp": b"&", b"lt": b"<", b"gt": b">", b"quot": b'"', b"apos": b"'", b"sol": b"/"}  # of characters in HTML
_SHORT = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}  # the others stand for themselves
_IN_JSON = re.compile(
    rb"\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\([\"\\/bfnrt])"
)
_IN_HTML = re.compile(rb"&(?:#0*([0-9]{1,7})|#[xX]0*([0-9a-fA-F]{1,6})|(amp|lt|gt|quot|apos|sol));")
_IN_URL = re.compile(rb"%([0-9a-fA-F]{2})")
_IN_FORM = re.compile(rb"%([0-9a-fA-F]{2})|\+")
MIN_CHARACTERS = 4  # shorter secrets are not replaced, as that would also hide harmless words


class SecretTexts:
    """Some secrets."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = [_encoded(secret) for secret in {*secrets} if secret]
        self._have_space = any(b" " in secret for secret in self._secrets)

    def __bool__(self) -> bool:
        return bool(self._secrets)

    def hide(self, text: str) -> str:
        """Return the text without the secrets."""
        if not self._secrets:
            return text
        content = _encoded(text)
        spans = sorted(span for reading in self._readings(content) for span in reading.find(self._secrets))
        parts, end = [], 0
        for start, stop in spans:
            if start >= end:
                parts += [content[end:start].decode(errors="surrogatepass"), REDACTED]
            end = max(end, stop)
        return "".join([*parts, content[end:].decode(errors="surrogatepass")]) if spans else text

    def _readings(self, content: bytes) -> Iterator["_Reading"]:
        yield _Reading(content, [0], [(0, 0)])
        if b"\\" in content:
            yield _read(content, _IN_JSON, _json_character)
        if b"&" in content:
            yield _read(content, _IN_HTML, _html_character)
        if b"%" in content:
            yield _read(content, _IN_URL, _url_byte)
        if b"+" in content and self._have_space:
            yield _read(content, _IN_FORM, _url_byte)


@dataclass(frozen=True, slots=True)
class _Reading:
    """What a text says: its parts begin at `begins`, and in the text they are `sources`, longer if they are escapes."""

    content: bytes
    begins: list[int]
    sources: list[tuple[int, int]]  # begin, and the length of an escape, or 0

    def find(self, secrets: Iterable[bytes]) -> Iterator[tuple[int, int]]:
        """Yield from where to where in the text a secret stands."""
        for secret in secrets:
            at = self.content.find(secret)
            while at >= 0:
                end = at + len(secret)
                yield self._source(at)[0], self._source(end - 1)[1]
                at = self.content.find(secret, end)

    def _source(self, at: int) -> tuple[int, int]:
        part = bisect_right(self.begins, at) - 1
        begin, length = self.sources[part]
        if length:
            return begin, begin + length
        begin += at - self.begins[part]
        return begin, begin + 1


def _read(content: bytes, escape: re.Pattern[bytes], value: Callable[[re.Match[bytes]], bytes]) -> _Reading:
    pieces: list[bytes] = []
    begins: list[int] = []
    sources: list[tuple[int, int]] = []
    length = end = 0
    for match in escape.finditer(content):
        for piece, source in ((content[end : match.start()], (end, 0)), (value(match), (match.start(), len(match[0])))):
            if piece:
                pieces.append(piece)
                begins.append(length)
                sources.append(source)
                length += len(piece)
        end = match.end()
    return _Reading(b"".join([*pieces, content[end:]]), [*begins, length], [*sources, (end, 0)])


def _json_character(match: re.Match[bytes]) -> bytes:
    high, low, code, short = match.groups()
    if short:
        return _SHORT.get(short, short)
    if code:
        return _encoded(chr(int(code, 16)))
    return _encoded(chr(0x10000 + ((int(high, 16) & 0x3FF) << 10) + (int(low, 16) & 0x3FF)))


def _html_character(match: re.Match[bytes]) -> bytes:
    decimal, hexadecimal, name = match.groups()
    if name:
        return _NAMES[name]
    code = int(decimal) if decimal else int(hexadecimal, 16)
    return _encoded(chr(code)) if code <= 0x10FFFF else match[0]


def _url_byte(match: re.Match[bytes]) -> bytes:
    return bytes((int(match[1], 16),)) if match[1] else b" "


def _encoded(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


class Redaction:
    """Hides the secrets of some settings in texts."""

    def __init__(self, settings: Declared) -> None:
        self._secrets = SecretTexts(secret for secret in settings.secrets() if len(secret) >= MIN_CHARACTERS)

    def __bool__(self) -> bool:
        return bool(self._secrets)

    def hide(self, text: str) -> str:
        """Return the text without the secrets."""
        return self._secrets.hide(text)
