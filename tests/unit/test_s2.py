"""Blocks of S2: what Snappy writes, the repeat codes that only S2 has, and what is no block."""

from __future__ import annotations

from contextlib import suppress

import snappy
from hypothesis import given
from hypothesis import strategies as st

from app.minio_queue_dir import BadBlock, unpack

TEXTS = st.one_of(
    st.binary(max_size=300), st.lists(st.sampled_from([b"abcd", b"efgh", b"x"]), max_size=900).map(b"".join)
)


@given(TEXTS)
def test_what_snappy_packs_is_unpacked(text: bytes) -> None:
    assert unpack(snappy.compress(text)) == text


def test_a_copy_without_an_offset_repeats_that_of_the_copy_before() -> None:
    # literal "abcd", copy of 4 from 4 back, repeats: of 5; of 8+2; of 260+1; of 65540+3.
    codes = [b"\x0cabcd", b"\x01\x04", b"\x05\x00", b"\x15\x00\x02", b"\x19\x00\x01\x00", b"\x1d\x00\x03\x00\x00"]
    length = 4 + 4 + 5 + 10 + 261 + 65543
    head = bytes([length & 0x7F | 0x80, length >> 7 & 0x7F | 0x80, length >> 14])
    assert unpack(head + b"".join(codes)) == (b"abcd" * length)[:length]


@given(TEXTS, st.integers(0), st.binary(min_size=1, max_size=4))
def test_what_is_no_block_is_refused_and_never_more_than_it_says(text: bytes, place: int, noise: bytes) -> None:
    packed = snappy.compress(text)
    cut = place % (len(packed) + 1)
    for broken in (packed[:cut], packed[:cut] + noise + packed[cut:], noise):
        with suppress(BadBlock):
            assert len(unpack(broken, 1000)) <= 1000
