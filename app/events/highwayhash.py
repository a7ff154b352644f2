"""Compute HighwayHash-256 with the MinIO server's key, and the document ids made from it (reference §4.8, §15).

No maintained wheel has this hash: the only binding is source code that needs a C++ compiler. Computed one at a time in
Python, an id takes 110 us, half of what Elasticsearch needs for the whole document. So many are computed at once: the
states of all messages are side by side in four long integers of 64-bit lanes, which Python adds, masks and shifts at
the speed of C. Only the 32-bit products are computed lane by lane. That takes 20-25 us per id in batches of 500.
"""

import base64
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import mul

_KEY = bytes.fromhex("4be734fa8e238acd263e83e6bb968552040f935da39f441497e09d1322de36a0")
_INIT0 = (0xDBE6D5D5FE4CCE2F, 0xA4093822299F31D0, 0x13198A2E03707344, 0x243F6A8885A308D3)
_INIT1 = (0x3BD39E10CB0EF593, 0xC0ACF169B5F18A8C, 0xBE5466CF34E90C6C, 0x452821E638D01377)
# The origin of each byte in a block of 16.
_ZIPPER = (3, 12, 2, 5, 14, 1, 15, 0, 11, 4, 10, 13, 9, 6, 8, 7)
_PACKET = 32
_WORD = 0xFFFFFFFF
_BATCH_MESSAGES = 500  # larger batches are not faster


def document_ids(paths: Sequence[str]) -> list[str]:
    """Return the id of each `bucket/object` as the MinIO server makes it: 44 characters, URL-safe (§4.8)."""
    return [base64.urlsafe_b64encode(digest).decode() for digest in digests([path.encode() for path in paths])]


def digests(messages: Sequence[bytes], key: bytes = _KEY) -> list[bytes]:
    """Return the 32-byte digest of each message, with a key of 32 bytes."""
    result: dict[int, bytes] = {}
    # A message that ends within a packet needs an additional step, so the two kinds are computed separately.
    for whole in (True, False):
        group = [i for i, message in enumerate(messages) if (len(message) % _PACKET == 0) is whole]
        group.sort(key=lambda i: -len(messages[i]))
        for start in range(0, len(group), _BATCH_MESSAGES):
            part = group[start : start + _BATCH_MESSAGES]
            result |= zip(part, _digests([messages[i] for i in part], key, whole=whole), strict=True)
    return [result[i] for i in range(len(messages))]


@dataclass(slots=True)
class _State:
    """The state of `count` messages; lane j of message i is the 64 bits that begin at 256 i + 64 j."""

    count: int
    v0: int
    v1: int
    m0: int
    m1: int


@dataclass(frozen=True, slots=True)
class _Masks:
    """Bit masks that repeat for every lane, or for every message."""

    top: int  # the highest bit of each lane
    rest: int  # all others
    low_words: int
    low_pairs: int  # lanes 0 and 1 of each message
    modulus: int  # all but the two highest bits of each pair of lanes
    lows: struct.Struct  # the low half of each lane
    highs: struct.Struct
    lanes: struct.Struct


@lru_cache(maxsize=64)
def _masks(count: int) -> _Masks:
    def repeated(pattern: str) -> int:
        return int.from_bytes(bytes.fromhex(pattern) * (count * _PACKET * 2 // len(pattern)), "little")

    return _Masks(
        top=repeated("00" * 7 + "80"),
        rest=repeated("ff" * 7 + "7f"),
        low_words=repeated("ffffffff00000000"),
        low_pairs=repeated("ff" * 16 + "00" * 16),
        modulus=repeated("ff" * 15 + "3f"),
        lows=struct.Struct("<" + "I4x" * count * 4),
        highs=struct.Struct("<" + "4xI" * count * 4),
        lanes=struct.Struct(f"<{count * 4}Q"),
    )


def _digests(messages: Sequence[bytes], key: bytes, *, whole: bool) -> list[bytes]:
    """Return the digests of messages that are sorted by length, the longest first, and end alike (`whole`)."""
    state = _initial_state(key, len(messages))
    for start in range(0, len(messages[0]) - _PACKET + 1, _PACKET):
        packets = [message[start : start + _PACKET] for message in messages if len(message) >= start + _PACKET]
        part = _first(state, len(packets))
        _update(part, int.from_bytes(b"".join(packets), "little"))
        _put_back(state, part)
    if not whole:
        _absorb_ends(state, messages)
    masks = _masks(state.count)
    for _ in range(10):
        swapped = (state.v0 >> 128) & masks.low_pairs | (state.v0 & masks.low_pairs) << 128
        _update(state, (swapped >> 32) & masks.low_words | (swapped & masks.low_words) << 32)
    high = _sum(state.v1, state.m1, masks) & masks.modulus
    reduced = _sum(state.v0, state.m0, masks) ^ (high << 1) ^ (high << 2)
    flat = reduced.to_bytes(state.count * _PACKET, "little")
    return [flat[start : start + _PACKET] for start in range(0, len(flat), _PACKET)]


@lru_cache(maxsize=64)
def _initial_lanes(key: bytes, count: int) -> tuple[int, int, int, int]:
    lanes = struct.unpack("<4Q", key)
    rotated = [lane >> 32 | (lane & _WORD) << 32 for lane in lanes]
    first = (
        [lane ^ init for lane, init in zip(lanes, _INIT0, strict=True)],
        [lane ^ init for lane, init in zip(rotated, _INIT1, strict=True)],
        _INIT0,
        _INIT1,
    )
    v0, v1, m0, m1 = (int.from_bytes(struct.pack("<4Q", *values) * count, "little") for values in first)
    return v0, v1, m0, m1


def _initial_state(key: bytes, count: int) -> _State:
    return _State(count, *_initial_lanes(key, count))


def _first(state: _State, count: int) -> _State:
    if count == state.count:
        return state
    mask = (1 << count * _PACKET * 8) - 1
    return _State(count, state.v0 & mask, state.v1 & mask, state.m0 & mask, state.m1 & mask)


def _put_back(state: _State, part: _State) -> None:
    if part is state:
        return
    bits = part.count * _PACKET * 8
    state.v0 = state.v0 >> bits << bits | part.v0
    state.v1 = state.v1 >> bits << bits | part.v1
    state.m0 = state.m0 >> bits << bits | part.m0
    state.m1 = state.m1 >> bits << bits | part.m1


def _absorb_ends(state: _State, messages: Sequence[bytes]) -> None:
    """Absorb the rest of each message after its last whole packet, 1 to 31 bytes."""
    ends = [message[len(message) - len(message) % _PACKET :] for message in messages]
    sizes = int.from_bytes(b"".join(struct.pack("<I", len(end)) * 8 for end in ends), "little")
    state.v0 = _sum(state.v0, sizes, _masks(state.count))
    words = struct.Struct("<8I")
    current = words.iter_unpack(state.v1.to_bytes(state.count * _PACKET, "little"))
    rotated = [
        words.pack(*[(word << len(end) | word >> 32 - len(end)) & _WORD for word in eight])
        for end, eight in zip(ends, current, strict=True)
    ]
    state.v1 = int.from_bytes(b"".join(rotated), "little")
    _update(state, int.from_bytes(b"".join(map(_last_packet, ends)), "little"))


def _last_packet(end: bytes) -> bytes:
    size, odd = len(end), len(end) % 4
    if size & 16:
        return end[: size - odd].ljust(28, b"\0") + end[-4:]
    packet = bytearray(end[: size - odd].ljust(_PACKET, b"\0"))
    if odd:
        left = end[size - odd :]
        packet[16:19] = bytes((left[0], left[odd >> 1], left[odd - 1]))
    return bytes(packet)


def _update(state: _State, packet: int) -> None:
    masks, count = _masks(state.count), state.count
    v1 = _sum(_sum(state.v1, state.m0, masks), packet, masks)
    state.m0 ^= _products(v1, state.v0, masks)
    v0 = _sum(state.v0, state.m1, masks)
    state.m1 ^= _products(v0, v1, masks)
    state.v0 = _sum(v0, _zippered(v1, count), masks)
    state.v1 = _sum(v1, _zippered(state.v0, count), masks)


def _sum(a: int, b: int, masks: _Masks) -> int:
    """Add lane by lane modulo 2^64: without the highest bits no carry leaves its lane."""
    return (a & masks.rest) + (b & masks.rest) ^ (a ^ b) & masks.top


def _products(a: int, b: int, masks: _Masks) -> int:
    """Multiply, in each lane, the low half of `a` by the high half of `b`."""
    low = masks.lows.unpack(a.to_bytes(masks.lows.size, "little"))
    high = masks.highs.unpack(b.to_bytes(masks.highs.size, "little"))
    return int.from_bytes(masks.lanes.pack(*map(mul, low, high)), "little")


def _zippered(lanes: int, count: int) -> int:
    flat = lanes.to_bytes(count * _PACKET, "little")
    mixed = bytearray(len(flat))
    for to, origin in enumerate(_ZIPPER):
        mixed[to::16] = flat[origin::16]
    return int.from_bytes(mixed, "little")
