"""Unpack gzip in parts, within limits: small bytes may unpack to a thousand times as many, and take even more time."""

import zlib
from collections.abc import Iterator

GZIP, GZIP_OR_ZLIB = zlib.MAX_WBITS | 16, zlib.MAX_WBITS | 32  # how zlib reads a header
MAX_MEMBERS = 10_000  # an empty one has 20 bytes, and takes as long as some KB of text
_CHUNK = 1 << 16  # bytes that are given to zlib at a time: it copies what is left of them after each part
_PART = 1 << 18  # bytes that are unpacked at a time


class NotUnpacked(ValueError):
    """The bytes cannot be unpacked, or have too many members. The message continues a sentence that names them."""


class UnpacksTooLong(NotUnpacked):
    """The bytes unpack to more than is allowed."""


def unpacked(packed: bytes | bytearray | memoryview, most: int, code: int = GZIP) -> Iterator[bytes]:
    """Yield what the members of a gzip text unpack to, in parts; together `most` bytes.

    Raises `NotUnpacked`, as soon as it is known.
    """
    size, members = 0, 1
    inflater = zlib.decompressobj(code)
    for start in range(0, len(packed), _CHUNK):
        chunk = bytes(packed[start : start + _CHUNK])
        while chunk:
            if inflater.eof:
                members += 1
                if members > MAX_MEMBERS:
                    raise NotUnpacked(f"has more than {MAX_MEMBERS:,} members: compress it as a whole")
                inflater = zlib.decompressobj(code)
            try:
                part = inflater.decompress(chunk, _PART)
            except zlib.error as error:
                raise NotUnpacked(f"cannot be unpacked: {error}") from None
            size += len(part)
            if size > most:
                raise UnpacksTooLong(f"unpacks to more than {most:,} bytes")
            if part:
                yield part
            chunk = inflater.unconsumed_tail or inflater.unused_data
    if not inflater.eof:
        raise NotUnpacked("is truncated")
