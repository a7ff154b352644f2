"""Limits of a body of events, counted down while it is read, and of what gzip unpacks to; the size of a stored event.

Gzip is unpacked in parts, within limits: small bytes may unpack to a thousand times as many, and take even more time.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from app.events.errors import BadEvents
from app.events.model import Event

UNLIMITED = 500_000_000  # bytes; PostgreSQL and SQLite refuse larger rows, as a text has at most 1 GB
_OTHERS = 1024  # bytes for numbers and column names


def stored_size(event: Event) -> int:
    """Return an upper bound of the event's bytes in an SQL statement, whatever the escaping.

    JSON control characters are escaped already, so only quotes and backslashes of the record grow.
    """
    record = event.record
    size = len(record.encode()) + record.count('"') + record.count("'") + record.count("\\")
    others = (event.id, event.name, event.bucket, event.key, event.version, event.sequencer, event.trace, event.origin)
    return size + 2 * sum(len(text.encode()) for text in others) + _OTHERS


def is_larger(event: Event, most: int) -> bool:
    """Return whether `stored_size` exceeds `most`; nearly free for an event far below it."""
    # A character takes at most 4 bytes, an escaped single-byte one at most 2. The other members have at most 20 KB.
    return len(event.record) * 4 + 32_768 > most and stored_size(event) > most


# Bytes of an event's record as it is stored: JSON in UTF-8, with `<`, `>` and `&` escaped. Keys have 1,024 bytes and
# metadata some KB; a worker holds several copies of what it sends.
MAX_EVENT_BYTES = 20 * 2**20


def utf8_size(text: str) -> int:
    """Return the bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def is_too_long(record: str) -> bool:
    """Return whether a record has more bytes than an event may have; nearly free for one that is far below."""
    return len(record) * 4 > MAX_EVENT_BYTES and utf8_size(record) > MAX_EVENT_BYTES


# The memory that JSON needs depends on its values and not on its bytes: 64 MiB of `[[],[],…` take 3 GB once parsed. A
# record of MinIO has 10 objects and 35 commas, and each envelope around it has as many again.
_CONTAINERS, _VALUES = 64, 128  # for each record that a body may have
_PART = 1 << 20  # bytes of a text in which values are counted while no other thread runs
_LEAST_CONTAINERS, _LEAST_VALUES = 100_000, 400_000  # whatever the limit of records: one record may be large


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a body: `records` in total, and the nesting of objects and arrays within one record.

    `event_bytes` is the largest size of a stored event (`stored_size`) that the database takes,
    `written_bytes` the most bytes that all records of a body have as they are stored, because a short text may become
    six times as long, and that a queue's message has once it is decompressed. `refusals` is how many of the records
    that are left out are described; the others are only counted.
    """

    records: int = 10_000
    nesting: int = 32
    event_bytes: int = UNLIMITED
    written_bytes: int = 64 * 2**20
    refusals: int = 1000

    @property
    def containers(self) -> int:
        """The most JSON objects and arrays in a body and in the messages wrapped in it; brackets within texts count."""
        return max(_LEAST_CONTAINERS, _CONTAINERS * self.records)

    @property
    def values(self) -> int:
        """The most JSON values, counted by the commas after them."""
        return max(_LEAST_VALUES, _VALUES * self.records)


class Allowance:
    """What is left of a body's limits. Each method raises `BadEvents` (413) if that is exceeded."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._records = limits.records
        self._containers = limits.containers
        self._values = limits.values
        self._written = limits.written_bytes

    def check_text(self, text: bytes | bytearray) -> None:
        """Count the values of a JSON text before it is parsed: after that, they are in memory already."""
        # A text has no more values than bytes, so most bodies need no scan.
        if len(text) > self._containers:
            self._containers -= _count(text, b"{") + _count(text, b"[")
            if self._containers < 0:
                raise _too_much(f"{self._limits.containers} JSON objects and arrays")
        if len(text) > self._values:
            self._values -= _count(text, b",")
            if self._values < 0:
                raise _too_much(f"{self._limits.values} JSON values")

    def check_records(self, count: int) -> None:
        """Refuse an array with more elements than records are left, before any element is processed."""
        if count > self._records:
            raise _too_many(self._limits.records)

    def take_record(self) -> None:
        """Count one record."""
        self._records -= 1
        if self._records < 0:
            raise _too_many(self._limits.records)

    def take_written(self, event: Event) -> None:
        """Count the bytes of an event's record."""
        record = event.record
        self._written -= utf8_size(record)
        if self._written < 0:
            most = self._limits.written_bytes
            raise BadEvents(
                f"The events of the body have more than {most} bytes as they are stored (JSON, in which <, > and & are "
                "escaped), the most for one request: send it in parts, or raise BUCKETWIRE_BODY_LIMIT.",
                413,
                limit=most,
            )


def _count(text: bytes | bytearray, byte: bytes) -> int:
    return sum([text.count(byte, start, start + _PART) for start in range(0, len(text), _PART)])


def _too_many(most: int) -> BadEvents:
    return BadEvents(f"The body holds more than {most} records, the most for one request: send it in parts.", 413)


def _too_much(most: str) -> BadEvents:
    return BadEvents(
        f"The body holds more than {most}, the most for one request: send it in parts, or raise "
        "BUCKETWIRE_RECORD_LIMIT, to which this limit is in proportion.",
        413,
    )


GZIP, GZIP_OR_ZLIB = zlib.MAX_WBITS | 16, zlib.MAX_WBITS | 32  # how zlib reads a header
MAX_MEMBERS = 10_000  # an empty one has 20 bytes, and takes as long as some KB of text
_PACKED_CHUNK = 1 << 16  # bytes that are given to zlib at a time: it copies what is left of them after each part
_UNPACKED_PART = 1 << 18  # bytes that are unpacked at a time


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
    for start in range(0, len(packed), _PACKED_CHUNK):
        chunk = bytes(packed[start : start + _PACKED_CHUNK])
        while chunk:
            if inflater.eof:
                members += 1
                if members > MAX_MEMBERS:
                    raise NotUnpacked(f"has more than {MAX_MEMBERS:,} members: compress it as a whole")
                inflater = zlib.decompressobj(code)
            try:
                part = inflater.decompress(chunk, _UNPACKED_PART)
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
