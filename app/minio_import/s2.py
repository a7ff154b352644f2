"""Unpack blocks of S2, the format in which MinIO writes batches (reference §5).

S2 extends Snappy by copies that repeat the offset of the previous copy, which Snappy libraries refuse.
"""

_LITERAL, _COPY1, _COPY2, _COPY4 = range(4)


class BadBlock(ValueError):
    """The bytes are not an S2 block, or not a complete one."""


def unpack(block: bytes, limit: int = 256 << 20) -> bytes:
    """Unpack a block of at most `limit` unpacked bytes. Raises `BadBlock`. A Snappy block is also an S2 block."""
    try:
        return _unpack(block, limit)
    except IndexError:
        raise BadBlock("it is truncated") from None


def _unpack(block: bytes, limit: int) -> bytes:
    size, at = _uvarint(block)
    if size > limit:
        raise BadBlock(f"it declares {size} unpacked bytes; at most {limit} are allowed")
    out = bytearray()
    offset = 0
    while at < len(block):
        tag = block[at]
        at += 1
        if tag & 3 == _LITERAL:
            length, at = _literal(block, at, tag >> 2)
            if at + length > len(block):
                raise BadBlock("it is truncated")
            out += block[at : at + length]
            at += length
        else:
            length, offset, at = _copy(block, at, tag, offset)
            if not 0 < offset <= len(out):
                raise BadBlock("it copies from before its beginning")
            _repeat(out, offset, length)
        if len(out) > size:
            raise BadBlock("it contains more bytes than it declares")
    if len(out) != size:
        raise BadBlock("it contains fewer bytes than it declares")
    return bytes(out)


def _uvarint(block: bytes) -> tuple[int, int]:
    value = shift = at = 0
    while block[at] & 0x80:
        value |= (block[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if at > 4:
            raise BadBlock("it does not begin with its length")
    return value | block[at] << shift, at + 1


def _literal(block: bytes, at: int, code: int) -> tuple[int, int]:
    """Return the length of a literal and the position where it begins."""
    if code < 60:
        return code + 1, at
    width = code - 59
    if at + width > len(block):
        raise BadBlock("it is truncated")
    return int.from_bytes(block[at : at + width], "little") + 1, at + width


def _copy(block: bytes, at: int, tag: int, last: int) -> tuple[int, int, int]:
    """Return the length and offset of a copy, and the position of the next element.

    An offset of 0 means the offset of the previous copy.
    """
    if tag & 3 == _COPY1:
        code, offset = tag >> 2 & 7, (tag & 0xE0) << 3 | block[at]
        at += 1
        if offset:
            return code + 4, offset, at
        width = max(0, code - 4)  # bytes that hold the additional length of a longer repeat
        more = sum(block[at + index] << 8 * index for index in range(width))
        return (code if not width else more + (4, 256, 65536)[width - 1]) + 4, last, at + width
    width = 2 if tag & 3 == _COPY2 else 4
    offset = sum(block[at + index] << 8 * index for index in range(width))
    return (tag >> 2) + 1, offset, at + width


def _repeat(out: bytearray, offset: int, length: int) -> None:
    """Append `length` bytes from `offset` bytes back; if `offset` is less than `length`, they repeat."""
    start = len(out) - offset
    copied = out[start : start + length]
    while len(copied) < length:
        copied += copied[: length - len(copied)]
    out += copied
