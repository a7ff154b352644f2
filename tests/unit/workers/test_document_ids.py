"""The ids of Elasticsearch documents, by the vectors of the reference and of the hash's authors."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.events.highwayhash import digests, document_ids

VECTORS = {
    "images/zero.bin": "K_CIkX7mqe_SQzyFmq8jruSjiN7Mv5tq4PLgBBZqBwc=",
    "images/does-not-exist": "uwB6CNvgLaUfEKylA8BAZTvftkHaMPyzTCNMA8oQD8g=",
    "images/dir a/myphoto+é &<1>.jpg": "pEsfj_1Nipa8qCl7PdVu7w3LmWxA6xFPJfyFVBRqeJM=",
}
PI = b"1415926535897932384626433832795028841971693993751058209749445923078164062862089986280348253421170679"
KEY = "4be734fa8e238acd263e83e6bb968552040f935da39f441497e09d1322de36a0"
# highwayhash_test.cc of google/highwayhash: under bytes 0 to 31 as key, of no byte, and of the byte 0.
AUTHORS = {
    b"": (0xDD44482AC2C874F5, 0xD946017313C7351F, 0xB3AEBECCB98714FF, 0x41DA233145751DF4),
    b"\0": (0xEDB941BCE45F8254, 0xE20D44EF3DCAC60F, 0x72651B9BCB324A47, 0x2073624CB275E484),
}


def test_ids_are_those_that_minio_makes() -> None:
    assert document_ids(list(VECTORS)) == list(VECTORS.values())
    for path, id_ in VECTORS.items():
        assert document_ids([path]) == [id_]


def test_the_key_is_the_hash_of_pi_under_no_key() -> None:
    assert digests([PI], bytes(32)) == [bytes.fromhex(KEY)]


@pytest.mark.parametrize("message", AUTHORS)
def test_the_hash_is_that_of_its_authors(message: bytes) -> None:
    assert struct.unpack("<4Q", digests([message], bytes(range(32)))[0]) == AUTHORS[message]


def test_no_messages_have_no_digests() -> None:
    assert digests([]) == []
    assert document_ids([]) == []


def test_a_digest_is_the_same_alone_and_among_others_of_every_length() -> None:
    messages = [bytes(range(size % 256)) * (size // 256 + 1) for size in range(200)]
    alone = [digests([message])[0] for message in messages]
    assert digests(messages) == alone
    assert digests(messages[::-1]) == alone[::-1]
    assert len(set(alone)) == len({*messages})


def test_more_than_are_computed_at_once_stay_in_their_order() -> None:
    paths = [f"bucket/object-{number}" for number in range(1203)]
    together = document_ids(paths)
    for place in (0, 499, 500, 999, 1000, 1202):
        assert together[place] == document_ids([paths[place]])[0]
    assert len(set(together)) == len(paths)


@given(st.lists(st.binary(max_size=100), max_size=8), st.binary(min_size=32, max_size=32))
def test_any_messages_are_hashed_as_if_alone(messages: list[bytes], key: bytes) -> None:
    assert digests(messages, key) == [digests([message], key)[0] for message in messages]
