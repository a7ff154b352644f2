"""Gzip of many members: each costs as much as some KB of text, and what is left was copied for each of them."""

from __future__ import annotations

import gzip
import io
import time
import zlib

import pytest
from urllib3 import HTTPResponse
from urllib3.exceptions import ProtocolError

from app.events.limits import GZIP_OR_ZLIB, MAX_MEMBERS, Limits, NotUnpacked, UnpacksTooLong, unpacked
from app.events.parsing import Message, read_message
from app.http_pools import whole

TEXT = b"a text that has some words " * 20_000
EMPTY = gzip.compress(b"", mtime=0)
FEW_SECONDS = 3.0  # of processor time; 8 MB of members took a minute


@pytest.mark.parametrize("packed", [gzip.compress(TEXT), gzip.compress(TEXT[:9]) + EMPTY * 3 + gzip.compress(TEXT[9:])])
def test_members_are_unpacked_one_after_the_other(packed: bytes) -> None:
    for given in (packed, bytearray(packed), memoryview(packed)):
        parts = list(unpacked(given, len(TEXT)))
        assert (b"".join(parts) == TEXT, len(parts) > 1, b"" in parts) == (True, True, False)
    with pytest.raises(UnpacksTooLong, match="unpacks to more than 539,999 bytes"):
        list(unpacked(packed, len(TEXT) - 1))
    assert b"".join(unpacked(zlib.compress(TEXT), len(TEXT), GZIP_OR_ZLIB)) == TEXT


def test_the_most_members_are_unpacked_and_no_more() -> None:
    assert list(unpacked(EMPTY * MAX_MEMBERS, 1)) == []
    with pytest.raises(NotUnpacked, match="has more than 10,000 members"):
        list(unpacked(EMPTY * (MAX_MEMBERS + 1), 1))


@pytest.mark.parametrize("member", [EMPTY, gzip.compress(b" ", mtime=0)])
def test_a_message_of_many_members_is_rejected_before_it_keeps_its_source_busy(member: bytes) -> None:
    started = time.process_time()
    read = read_message(Message(member * 400_000), Limits(), None)
    assert "has more than 10,000 members" in read.problem
    assert time.process_time() - started < FEW_SECONDS


def test_an_answer_of_many_members_keeps_no_worker_busy() -> None:
    body = EMPTY * 400_000
    answer = HTTPResponse(io.BytesIO(body), {"Content-Encoding": "gzip"}, 200, preload_content=False)
    started = time.process_time()
    with pytest.raises(ProtocolError, match="has more than 10,000 members"):
        whole(answer, 1 << 24)
    assert time.process_time() - started < FEW_SECONDS
