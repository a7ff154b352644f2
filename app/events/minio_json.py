"""Read and write texts as MinIO does: a record's JSON (§1.5), a key in a record (§1.6), a time (§1.4)."""

import codecs
import hashlib
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote_plus

import orjson

Encoded = bytes | bytearray  # a large body is not copied to make bytes of it

MAX_KEY_BYTES = 4096  # the limit of the outbox's column; above S3's own
YEAR_10000 = 253_402_300_800_000  # ms since 1970: the first time that cannot be written

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]{1,9})? ?([Zz]|[+-][0-9]{2}:?[0-9]{2})?"
)
_HEX = "0123456789abcdefABCDEF"
_BYTES = {f"{high}{low}".encode(): bytes.fromhex(high + low) for high in _HEX for low in _HEX}
_NO_ZERO = re.compile(rb"[^0]")
_ZERO_FOR_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_THREE_SPACES = b" " * len(codecs.BOM_UTF8)
_LONG_NUMBER = b"0" * 19  # the shortest number that may not fit into 64 bits
_MOST_BEFORE = 2  # bytes that show that a number begins: what stands before it, and its sign
_PART = 1 << 16  # bytes of a text that are searched or decoded at a time
_SAFE_NESTING = 200  # the standard library recurses, orjson does not
_BEFORE_NUMBER = b":[, \t\r\n"
_ESCAPES = [(letter, f"\\u{ord(letter):04x}") for letter in "<>&\u2028\u2029"]
_MAX_ENCODED_KEY = 3 * MAX_KEY_BYTES  # characters: `%xx` for each byte
_MAX_GROWTH = 6  # bytes that escaping makes of one


class BadJson(ValueError):
    """Bytes that are not JSON; `offset` is the byte at which parsing stopped, from 0."""

    def __init__(self, problem: str, offset: int) -> None:
        super().__init__(problem)
        self.problem = problem
        self.offset = offset


class TooDeep(ValueError):
    """A value is nested too deeply to be written as JSON."""


class TooLong(ValueError):
    """A value's JSON would be longer than it may be; `size` is its bytes."""

    def __init__(self, size: int) -> None:
        super().__init__(f"{size} bytes")
        self.size = size


class BadKey(ValueError):
    """A key cannot be decoded; the message names the reason."""


def load(data: Encoded, *, long_numbers: bool | None = None) -> Any:
    """Parse JSON; integers of any length are kept, and a byte order mark of UTF-8 is skipped. Raises `BadJson`.

    For many texts of one body, call `holds_long_numbers` once for the body and pass the result.
    """
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as problem:
        if data.startswith(codecs.BOM_UTF8):
            # Spaces in its place keep the offsets of what else is wrong.
            return load(_THREE_SPACES + data[len(codecs.BOM_UTF8) :], long_numbers=long_numbers)
        raise _bad_json(data, problem) from None
    if holds_long_numbers(data) if long_numbers is None else long_numbers:
        return _load_exactly(data, value)
    return value


def holds_long_numbers(data: Encoded) -> bool:
    """Return whether the JSON may contain a number of more than 64 bits, which orjson would silently make a float."""
    # In parts, between which other threads run: each with what may stand before a number that begins in it, and with as
    # much behind it as shows that the number is long.
    for start in range(0, len(data), _PART):
        first = max(0, start - _MOST_BEFORE)
        zeros = data[first : start + _PART + len(_LONG_NUMBER) - 1].translate(_ZERO_FOR_DIGITS)
        position = zeros.find(_LONG_NUMBER, start - first)
        while position >= 0:
            before = position - 2 if zeros[position - 1 : position] == b"-" else position - 1
            if before < 0 or zeros[before] in _BEFORE_NUMBER:
                return True
            digits = _NO_ZERO.search(zeros, position)  # digits within a text: a hash, a number in quotes
            position = zeros.find(_LONG_NUMBER, digits.start()) if digits is not None else -1
    return False


def _load_exactly(data: Encoded, value: Any) -> Any:
    if deeper_than(value, _SAFE_NESTING):
        raise BadJson(f"it is nested more than {_SAFE_NESTING} deep", 0)
    return json.loads(data)  # cannot fail: orjson has parsed it, and accepts no number that is too long for Python


def _bad_json(data: Encoded, problem: orjson.JSONDecodeError) -> BadJson:
    """Return the problem with its offset in bytes; orjson counts characters.

    The text is decoded in parts: the whole takes four times its bytes if it has one character beyond U+FFFF.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    characters = offset = 0
    for start in range(0, len(data), _PART):
        part = data[start : start + _PART]
        try:
            text = decoder.decode(part, final=start + _PART >= len(data))
        except UnicodeDecodeError as undecodable:
            # It counts from the incomplete character with which the part before ended.
            return BadJson("it is not UTF-8", start + len(part) - len(undecodable.object) + undecodable.start)
        offset += len(text[: max(0, problem.pos - characters)].encode())
        characters += len(text)
    return BadJson(problem.msg.partition(": line ")[0], offset)


def deeper_than(value: Any, limit: int) -> bool:
    """Return whether objects and arrays are nested more than `limit` deep. Does not recurse."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(limit):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
    return bool(level)


def text(value: Any, most: int | None = None) -> str:
    """Write the value as JSON as Go's encoder does (as MinIO: §1.5), members in their order.

    Raises `TooDeep` for a value that is nested more than about 200 deep, and `TooLong`, before anything is escaped, if
    the text would have more than `most` bytes.
    """
    encoded = _dumps(value, 0)
    if most is not None and len(encoded) * _MAX_GROWTH > most and (size := _escaped_size(encoded)) > most:
        raise TooLong(size)
    dumped = encoded.decode()
    for letter, escaped in _ESCAPES:
        if letter in dumped:  # about ten times as fast in a str as in bytes
            dumped = dumped.replace(letter, escaped)
    return dumped


def size(value: Any) -> int:
    """Return the bytes that the value has as JSON, before `text` escapes anything. Raises `TooDeep`."""
    return len(_dumps(value, 0))


def _escaped_size(encoded: bytes) -> int:
    grown = ((letter.encode(), len(escaped)) for letter, escaped in _ESCAPES)
    return len(encoded) + sum(encoded.count(letter) * (length - len(letter)) for letter, length in grown)


def digest(value: Any) -> str:
    """Return a digest of the value, 32 hex characters: BLAKE2b of its JSON with sorted members. Raises `TooDeep`."""
    return hashlib.blake2b(_dumps(value, orjson.OPT_SORT_KEYS), digest_size=16).hexdigest()


def _dumps(value: Any, option: int) -> bytes:
    try:
        return orjson.dumps(value, option=option)
    except orjson.JSONEncodeError:  # an integer of more than 64 bits, or nested deeper than orjson can write
        if deeper_than(value, _SAFE_NESTING):
            raise TooDeep from None
        sort = option == orjson.OPT_SORT_KEYS
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=sort).encode()


def encode_key(key: str) -> str:
    """Encode a key as in a record: form encoding, also of `/` (as MinIO: §1.6).

    One that is far too long stays as it is, because encoding takes much memory; `decode_key` refuses it.
    """
    return quote_plus(key, safe="") if len(key) <= _MAX_ENCODED_KEY else key


def decode_key(encoded: str) -> str:
    """Decode a key of a record. Raises `BadKey` where MinIO would fail the delivery (§1.6), and for a too long one."""
    if len(encoded) > _MAX_ENCODED_KEY:  # whose parts take a hundred times its memory
        raise BadKey(f"has {len(encoded)} characters; a key has at most {MAX_KEY_BYTES} bytes")
    plain = encoded.replace("%2F", "/")  # enough for nearly every key
    if "%" not in plain and "+" not in plain:
        return plain
    first, *escaped = encoded.replace("+", " ").encode().split(b"%")
    try:
        return b"".join([first, *[_BYTES[part[:2]] + part[2:] for part in escaped]]).decode()
    except KeyError:
        raise BadKey("has a stray %: two hex digits must follow it, and a literal % is written %25") from None
    except UnicodeDecodeError:
        raise BadKey("does not decode to UTF-8") from None


def milliseconds(moment: str) -> int | None:
    """Parse an RFC 3339 time with up to 9 decimals to milliseconds since 1970; None if it is invalid or before 1970.

    A space may stand for the `T` and before the offset, as some senders write it. A time without an offset is UTC.

    Further decimals are truncated, not rounded, so that a time never moves into the next second.
    """
    if len(moment) == 24 and moment[4:20:3] == "--T::." and moment[23] == "Z":
        parsed = moment  # MinIO's own format
    else:
        parts = _TIME.fullmatch(moment)
        if parts is None:
            return None
        parsed = f"{parts[1]}T{parts[2]}{(parts[3] or '.0')[:4].ljust(4, '0')}{(parts[4] or 'Z').upper()}"
    try:
        result = (datetime.fromisoformat(parsed) - _EPOCH) // _MILLISECOND
    except ValueError:
        return None
    return result if 0 <= result < YEAR_10000 else None


def timestamp(moment: int) -> str:
    """Format milliseconds since 1970 as MinIO writes a time: UTC, always three decimals (§1.4)."""
    return (_EPOCH + timedelta(milliseconds=moment)).isoformat(timespec="milliseconds")[:-6] + "Z"
