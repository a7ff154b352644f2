"""The partition that a key goes to, by the vectors of the reference."""

from __future__ import annotations

import pytest
from fnv_hash_fast import fnv1a_32
from hypothesis import given
from hypothesis import strategies as st

from workers.systems.kafka.target import partition_of

VECTORS = [
    ("images/zero.bin", 0x2E065DA9, 5),
    ("images/does-not-exist", 0xEF22BCC3, 5),
    ("images/dir a/myphoto+é &<1>.jpg", 0xEAD5A062, 4),
]


@pytest.mark.parametrize(("path", "hashed", "partition"), VECTORS)
def test_the_partition_of_six_is_that_of_minio(path: str, hashed: int, partition: int) -> None:
    assert fnv1a_32(path.encode()) == hashed
    assert partition_of(path.encode(), 6) == partition


def test_the_hash_of_nothing_is_its_basis() -> None:
    assert fnv1a_32(b"") == 0x811C9DC5


@given(st.binary(max_size=60), st.integers(1, 1000))
def test_the_partition_is_the_remainder_of_the_signed_hash_towards_zero_without_its_sign(
    key: bytes, count: int
) -> None:
    signed = fnv1a_32(key)
    if signed >= 2**31:
        signed -= 2**32
    remainder = signed - count * int(signed / count)  # a float is exact for 32 bits, and int() goes towards zero
    assert partition_of(key, count) == abs(remainder)
    assert 0 <= partition_of(key, count) < count
