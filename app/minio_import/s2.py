"""Blocks of S2, in which MinIO writes batches (reference §5).

S2 extends Snappy by copies that repeat the offset of the copy before, which libraries of Snappy refuse.
"""

_LITERAL, _COPY1, _COPY2, _COPY4 = range(4)


class BadBlock(ValueError):
    """The bytes are no S2 block, or not a whole one."""


def unpack(block: bytes, limit: int = 256 << 20) -> bytes:
    """What the block holds, at most `limit` bytes. Raises `BadBlock`. A block of Snappy is one of S2."""
    try:
        return _unpack(block, limit)
    except IndexError:
        raise BadBlock("it ends before its end") from None


def _unpack(block: bytes, limit: int) -> bytes:
    size, at = _uvarint(block)
    if size > limit:
        raise BadBlock(f"it says that it holds {size} bytes; {limit} are the most")
    out = bytearray()
    offset = 0
    while at < len(block):
        tag = block[at]
        at += 1
        if tag & 3 == _LITERAL:
            length, at = _literal(block, at, tag >> 2)
            if at + length > len(block):
                raise BadBlock("it ends before its end")
            out += block[at : at + length]
            at += length
        else:
            length, offset, at = _copy(block, at, tag, offset)
            if not 0 < offset <= len(out):
                raise BadBlock("it copies from before its beginning")
            _repeat(out, offset, length)
        if len(out) > size:
            raise BadBlock("it holds more than it says")
    if len(out) != size:
        raise BadBlock("it holds less than it says")
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
    """The length of a literal and where it begins."""
    if code < 60:
        return code + 1, at
    width = code - 59
    if at + width > len(block):
        raise BadBlock("it ends before its end")
    return int.from_bytes(block[at : at + width], "little") + 1, at + width


def _copy(block: bytes, at: int, tag: int, last: int) -> tuple[int, int, int]:
    """Length and offset of a copy, and where the next element begins. An offset of 0 means that of the copy before."""
    if tag & 3 == _COPY1:
        code, offset = tag >> 2 & 7, (tag & 0xE0) << 3 | block[at]
        at += 1
        if offset:
            return code + 4, offset, at
        width = max(0, code - 4)  # bytes in which a longer repeat says how much longer
        more = sum(block[at + place] << 8 * place for place in range(width))
        return (code if not width else more + (4, 256, 65536)[width - 1]) + 4, last, at + width
    width = 2 if tag & 3 == _COPY2 else 4
    offset = sum(block[at + place] << 8 * place for place in range(width))
    return (tag >> 2) + 1, offset, at + width


def _repeat(out: bytearray, offset: int, length: int) -> None:
    """Add `length` bytes from `offset` back; where that is less than `length`, they repeat."""
    start = len(out) - offset
    found = out[start : start + length]
    while len(found) < length:
        found += found[: length - len(found)]
    out += found
