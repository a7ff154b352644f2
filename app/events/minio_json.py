"""Texts as MinIO writes and reads them: a record's JSON (§1.5), a key in a record (§1.6), a time (§1.4)."""

import hashlib
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote_plus

import orjson

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_TIME = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})")
_YEAR_10000 = 253_402_300_800_000
_HEX = "0123456789abcdefABCDEF"
_BYTES = {f"{high}{low}".encode(): bytes.fromhex(high + low) for high in _HEX for low in _HEX}
_NO_ZERO = re.compile(rb"[^0]")
_ZERO_FOR_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER = b"0" * 19  # the shortest number that 64 bits may not hold
_SAFE_NESTING = 200  # the standard library recurses, orjson does not
_BEFORE_NUMBER = b":[, \t\r\n"
_ESCAPES = [(letter, f"\\u{ord(letter):04x}") for letter in "<>&\u2028\u2029"]


class BadJson(ValueError):
    """Bytes that are no JSON; `offset` counts bytes from the first."""

    def __init__(self, problem: str, offset: int) -> None:
        super().__init__(problem)
        self.problem = problem
        self.offset = offset


class TooDeep(ValueError):
    """A value nested so deep that it cannot be written as JSON."""


class BadKey(ValueError):
    """A key that does not decode; the message says why."""


def load(data: bytes, *, long_numbers: bool | None = None) -> Any:
    """The value that the JSON text holds; integers of any length are kept. Raises `BadJson`.

    A caller with many texts from one body asks `holds_long_numbers` once for all of them.
    """
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as problem:
        raise _bad_json(data, problem) from None
    if holds_long_numbers(data) if long_numbers is None else long_numbers:
        return _load_exactly(data, value)
    return value


def holds_long_numbers(data: bytes) -> bool:
    """Whether a number in the JSON text may be longer than 64 bits, which orjson would silently make a float."""
    zeros = data.translate(_ZERO_FOR_DIGITS)
    found = zeros.find(_LONG_NUMBER)
    while found >= 0:
        before = found - 2 if zeros[found - 1 : found] == b"-" else found - 1
        if before < 0 or zeros[before] in _BEFORE_NUMBER:
            return True
        ends = _NO_ZERO.search(zeros, found)  # digits within a text: a hash, a number in quotes
        found = zeros.find(_LONG_NUMBER, ends.start()) if ends is not None else -1
    return False


def _load_exactly(data: bytes, value: Any) -> Any:
    if deeper_than(value, _SAFE_NESTING):
        raise BadJson(f"it is nested more than {_SAFE_NESTING} deep", 0)
    return json.loads(data)  # cannot fail: orjson has read it, and takes no number that Python would find too long


def _bad_json(data: bytes, problem: orjson.JSONDecodeError) -> BadJson:
    try:
        offset = len(data.decode()[: problem.pos].encode())
    except UnicodeDecodeError as undecodable:
        return BadJson("it is not UTF-8", undecodable.start)
    return BadJson(problem.msg.partition(": line ")[0], offset)


def deeper_than(value: Any, limit: int) -> bool:
    """Whether objects and arrays lie in each other more than `limit` deep. Does not recurse."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(limit):
        level = [
            inner
            for each in level
            for inner in (each.values() if isinstance(each, dict) else each)
            if isinstance(inner, dict | list)
        ]
    return bool(level)


def text(value: Any) -> str:
    """The value as JSON text, spelt as Go's encoder spells it (as MinIO: §1.5); members in their order.

    Raises `TooDeep` for what nests more than some 200 deep.
    """
    dumped = _dumps(value, 0).decode()
    for letter, escaped in _ESCAPES:
        if letter in dumped:  # in a str this is some ten times as fast as in bytes
            dumped = dumped.replace(letter, escaped)
    return dumped


def digest(value: Any) -> str:
    """32 hex characters that stand for the value: BLAKE2b over its JSON with members sorted. Raises as `text` does."""
    return hashlib.blake2b(_dumps(value, orjson.OPT_SORT_KEYS), digest_size=16).hexdigest()


def _dumps(value: Any, option: int) -> bytes:
    try:
        return orjson.dumps(value, option=option)
    except orjson.JSONEncodeError:  # an integer beyond 64 bits, or nested deeper than orjson writes
        if deeper_than(value, _SAFE_NESTING):
            raise TooDeep from None
        sort = option == orjson.OPT_SORT_KEYS
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=sort).encode()


def encode_key(key: str) -> str:
    """The key as it stands in a record: form encoding, `/` too (as MinIO: §1.6)."""
    return quote_plus(key, safe="")


def decode_key(encoded: str) -> str:
    """The key that a record's spelling stands for. Raises `BadKey` where MinIO would fail the delivery (§1.6)."""
    plain = encoded.replace("%2F", "/")  # nearly every key needs no more than this
    if "%" not in plain and "+" not in plain:
        return plain
    first, *escaped = encoded.replace("+", " ").encode().split(b"%")
    try:
        return b"".join([first, *[_BYTES[part[:2]] + part[2:] for part in escaped]]).decode()
    except KeyError:
        raise BadKey("has a stray %: two hex digits must follow it, and a literal % is spelt %25") from None
    except UnicodeDecodeError:
        raise BadKey("does not decode to UTF-8") from None


def milliseconds(moment: str) -> int | None:
    """Milliseconds since 1970 of an RFC 3339 time with up to 9 decimals; None if it is none, or lies before 1970.

    Finer decimals are cut, not rounded, so that a time never moves into the next second.
    """
    if len(moment) == 24 and moment[4:20:3] == "--T::." and moment[23] == "Z":
        parsed = moment  # MinIO's own
    else:
        parts = _TIME.fullmatch(moment)
        if parts is None:
            return None
        parsed = f"{parts[1]}{(parts[2] or '.0')[:4].ljust(4, '0')}{parts[3]}"
    try:
        found = (datetime.fromisoformat(parsed) - _EPOCH) // _MILLISECOND
    except ValueError:
        return None
    return found if 0 <= found < _YEAR_10000 else None


def timestamp(moment: int) -> str:
    """Milliseconds since 1970 as MinIO writes a time: UTC, always three decimals (§1.4)."""
    return (_EPOCH + timedelta(milliseconds=moment)).isoformat(timespec="milliseconds")[:-6] + "Z"
