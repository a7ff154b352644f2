"""Batches of Kafka that unpack to too much, or whose sizes lie: bounded, named, and passed over."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import snappy
from kafka.record import MemoryRecords, MemoryRecordsBuilder
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.util import calc_crc32, encode_varint

from workers.systems.kafka import source
from workers.systems.kafka.source import Unreadable

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
LIMIT = 1 << 20
pytestmark = pytest.mark.usefixtures("limited")


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MAX_MESSAGE_BYTES", LIMIT)


def batch(magic: int, codec: int, *values: bytes, offset: int = 0) -> bytes:
    builder = MemoryRecordsBuilder(magic, codec, 1 << 30, offset=offset)
    for value in values:
        builder.append(1, None, value)
    builder.close()
    return bytes(builder.buffer())


def read(*batches: bytes) -> list[tuple[int, bytes]]:
    return [(record.offset, record.value) for each in MemoryRecords(b"".join(batches)) for record in each]


def assert_passed_over(records: list[tuple[int, bytes]], problem: str) -> None:
    (first, bad, last) = records
    assert (first[1], last[1]) == (b"before", b"after")
    assert isinstance(bad[1], Unreadable)
    assert problem in bad[1].problem


@pytest.mark.parametrize(
    ("magic", "codec"),
    [(2, GZIP), (2, SNAPPY), (2, LZ4), (2, ZSTD), (1, GZIP), (1, SNAPPY), (1, LZ4), (0, GZIP), (0, SNAPPY)],
)
def test_a_batch_that_unpacks_to_too_much_is_passed_over(magic: int, codec: int) -> None:
    bomb = batch(magic, codec, bytes(4 * LIMIT), offset=0 if magic < 2 else 1)
    records = read(batch(magic, 0, b"before"), bomb, batch(magic, codec, b"after"))
    assert_passed_over(records, "unpacks to more than 1,048,576 bytes")


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
@pytest.mark.parametrize("magic", [2, 1])
def test_a_batch_of_usual_size_is_read_whole(magic: int, codec: int) -> None:
    if (magic, codec) == (1, ZSTD):
        pytest.skip("which versions before 2 do not have")
    values = [b"%d" % number * 1_000 for number in range(100)]
    assert [value for _, value in read(batch(magic, codec, *values))] == values


def test_members_of_gzip_count_together() -> None:
    many = gzip.compress(bytes(LIMIT // 2)) * 3
    with pytest.raises(ValueError, match="more than"):
        source._gunzip(many)


def test_a_snappy_block_that_claims_gigabytes_takes_none() -> None:
    with patch.object(snappy, "decompress") as decompress, pytest.raises(ValueError, match="more than"):
        source._unsnap(b"\xff\xff\xff\xff\x0f" + b"x" * 20)
    decompress.assert_not_called()


def rewritten(content: bytes, change: Callable[[bytearray], None]) -> bytes:
    """A batch of version 2 with changed records, and the checksum that belongs to them."""
    changed = bytearray(content)
    change(changed)
    struct.pack_into(">i", changed, 8, len(changed) - 12)
    return bytes(changed)


def test_a_record_that_claims_millions_of_headers_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MAX_MESSAGE_BYTES", 4 << 20)

    def claim(content: bytearray) -> None:
        del content[DefaultRecordBatch.HEADER_STRUCT.size :]
        record = bytearray(b"\0")  # attributes
        for number in (0, 0, -1, -1, 1_000_000):  # times, offset, key, value, headers
            encode_varint(number, record.append)
        record += bytes(2_000_000)
        encode_varint(len(record), content.append)
        content += record

    records = read(batch(2, 0, b"before"), rewritten(batch(2, 0, b"x"), claim), batch(2, 0, b"after"))
    assert_passed_over(records, "too many headers")


@pytest.mark.parametrize("size", [-12, -(1 << 31), 0, 13, 1 << 30])
def test_a_message_whose_size_lies_is_passed_over(size: int) -> None:
    inner = struct.pack(">qi", 0, size) + bytes(30)
    wrapped = bytearray(struct.pack(">bbq", 1, GZIP, 1) + struct.pack(">i", -1))
    packed = gzip.compress(inner)
    wrapped += struct.pack(">i", len(packed)) + packed
    bad = struct.pack(">qiI", 5, len(wrapped) + 4, calc_crc32(wrapped)) + wrapped
    records: Any = read(batch(1, 0, b"before"), bad, batch(1, 0, b"after"))
    assert_passed_over(records, "cannot be read")
    assert records[1][0] == 5
