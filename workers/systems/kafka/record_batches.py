"""Have kafka-python read batches of records within limits, and go on after one that cannot be read.

A compressed batch of 1 MB may unpack to gigabytes, a record may claim millions of headers, and a set of messages may
have sizes that lie. The library would fill the memory, or find the same error at the same offset forever. Here such a
batch, or the rest of one, is a single record whose value is `Unreadable`. To import this module is enough.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Any

from kafka import codec
from kafka.errors import CorruptRecordError
from kafka.record import default_records, legacy_records
from kafka.record.default_records import DefaultRecord, DefaultRecordBatch
from kafka.record.legacy_records import LegacyRecord, LegacyRecordBatch

from app.events.limits import NotUnpacked, unpacked
from workers.sources.base import AnyText
from workers.targets.answer_limit import MAX_MESSAGE_BYTES

_XERIAL_HEADER_BYTES = 16
_MAX_NUMBERS = 20_000  # of variable length in one record: two for each header
_SMALL_BYTES = 1 << 20  # a batch that cannot have so many numbers that they matter
_MIN_MESSAGE_BYTES = 14  # of versions 0 and 1: checksum, version, attributes, and the sizes of key and value
_ERRORS = (CorruptRecordError, struct.error, AssertionError, EOFError, LookupError, OSError, RuntimeError,
           ValueError)  # fmt: skip


class Unreadable(bytes):
    """The value of a record that stands for a batch, or for the rest of one; `problem` says why it cannot be read."""

    problem: str

    def __new__(cls, problem: str) -> "Unreadable":
        """Return an empty value."""
        made = super().__new__(cls)
        made.problem = problem
        return made


class _Parts:
    """What is unpacked, of which there may be `MAX_MESSAGE_BYTES`."""

    def __init__(self) -> None:
        self.content = bytearray()

    @property
    def left(self) -> int:
        """How many bytes may follow, and one more, by which too much is noticed."""
        return MAX_MESSAGE_BYTES + 1 - len(self.content)

    def add(self, part: bytes, claimed: int = 0) -> None:
        """Add a part; before it is unpacked, it may be added by the size that it claims. Raises `ValueError`."""
        if max(len(part), claimed) >= self.left:
            raise ValueError(f"it unpacks to more than {MAX_MESSAGE_BYTES:,} bytes")
        self.content += part


def _gunzip(payload: Any) -> bytes:
    try:
        return b"".join(unpacked(payload, MAX_MESSAGE_BYTES))
    except NotUnpacked as error:
        raise ValueError(f"it {error}") from None


def _unsnap(payload: Any) -> bytearray:
    parts, data = _Parts(), bytes(payload)
    blocks = [data]
    if codec._detect_xerial_stream(data):
        blocks, at = [], _XERIAL_HEADER_BYTES
        while at < len(data):
            (size,) = struct.unpack_from("!i", data, at)
            if size < 0:
                raise ValueError("a block has a negative size")
            blocks.append(data[at + 4 : at + 4 + size])
            at += 4 + size
    for block in blocks:
        parts.add(b"", _snappy_size(block))  # the library takes the memory that the block claims
        parts.add(codec.snappy.decompress(block))
    return parts.content


def _snappy_size(block: bytes) -> int:
    size = 0
    for place, byte in enumerate(block[:5]):
        size |= (byte & 127) << (7 * place)
        if byte < 128:
            return size
    raise ValueError("a block does not say its size")


def _unlz4(payload: Any) -> bytearray:
    parts, rest = _Parts(), bytes(payload)
    while rest:
        stream = codec.lz4.LZ4FrameDecompressor()
        parts.add(stream.decompress(rest, parts.left))
        if not stream.eof:
            raise ValueError("the lz4 frame ends early")
        rest = stream.unused_data or b""
    return parts.content


def _unzstd(payload: Any) -> bytearray:
    parts = _Parts()
    with codec.zstd.ZstdDecompressor().stream_reader(bytes(payload), read_across_frames=True) as reader:
        while part := reader.read(min(parts.left, _SMALL_BYTES)):
            parts.add(part)
    return parts.content


def _read_record(batch: Any) -> Any:
    """Read the next record; the name of a header may be no UTF-8."""
    options = {} if len(batch._buffer) <= _SMALL_BYTES else {"decode_varint": _counting()}
    try:
        return _read_strictly(batch, **options)
    except UnicodeDecodeError:
        batch._buffer = AnyText(batch._buffer)
        return _read_strictly(batch, **options)


def _counting() -> Callable[..., Any]:
    """Return the function that reads a number of one record, which raises `ValueError` for too many."""
    left = _MAX_NUMBERS

    def decode(*arguments: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise ValueError("a record has too many headers")
        return default_records.decode_varint(*arguments)

    return decode


def _records(batch: Any) -> Iterator[Any]:
    try:
        batch._maybe_uncompress()
        yield from iter(batch.__next__, _NOTHING)
    except _ERRORS as error:
        first, last = batch.base_offset + batch._next_record_index, batch.last_offset
        value = Unreadable(f"offsets {first} to {last} cannot be read: {error}")
        yield DefaultRecord(0, last, batch.max_timestamp, batch.timestamp_type, None, value, [])


def _messages(batch: Any) -> Iterator[Any]:
    try:
        yield from _read_legacy(batch)
    except _ERRORS as error:
        value = Unreadable(f"the messages up to offset {batch.base_offset} cannot be read: {error}")
        yield LegacyRecord(batch.magic, batch.base_offset, batch._timestamp, batch.timestamp_type, None, value, 0, b"")


def _decompress(batch: Any, key_offset: int) -> Any:
    """Unpack a set of messages, and follow its sizes: by a negative one the library would go round in circles."""
    content = _unpack_legacy(batch, key_offset)
    at = 0
    while at < len(content):
        (size,) = struct.unpack_from(">i", content, at + 8)
        if not _MIN_MESSAGE_BYTES <= size <= len(content) - at - batch.LOG_OVERHEAD:
            raise ValueError(f"a message claims {size} bytes")
        at += batch.LOG_OVERHEAD + size
    return content


_NOTHING = object()
_read_strictly = DefaultRecordBatch._read_msg
_read_legacy = LegacyRecordBatch.__iter__
_unpack_legacy = LegacyRecordBatch._decompress
DefaultRecordBatch._read_msg = _read_record
DefaultRecordBatch.__iter__ = _records
LegacyRecordBatch.__iter__ = _messages
LegacyRecordBatch._decompress = _decompress
codec.lz4_decode = _unlz4  # which that of old brokers calls
for _module in (default_records, legacy_records):
    _module.gzip_decode, _module.snappy_decode, _module.lz4_decode = _gunzip, _unsnap, _unlz4
default_records.zstd_decode = _unzstd
