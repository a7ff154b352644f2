"""What is known of a bucket is written in chunks, and compared with a listing key by key in S3's order."""

from __future__ import annotations

from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.listings import snapshot
from app.listings.comparison import Ahead, by_key
from app.listings.differences import Content, Entry, Listed, Pending
from app.listings.limits import exceeds
from app.listings.snapshot import KeySpool, ListingSpool

KEYS = st.text('a/\n"é\ud7ff\uffff\U0001f600', min_size=1, max_size=3)
CONTENTS = st.builds(Content, st.text(max_size=3), st.integers(0, 2**40), st.integers(0, 2**42), st.booleans())
PENDING = st.builds(Pending, st.none() | CONTENTS, st.integers(0, 2**42), st.integers(0, 2**42), st.integers(0, 2**60))
ENTRY = st.builds(Entry, KEYS, st.sampled_from(["", "null", "v"]), st.none() | CONTENTS, st.none() | PENDING)
ENTRIES = st.lists(ENTRY)
LISTED = st.lists(st.builds(Listed, KEYS, st.sampled_from(["", "v"]), CONTENTS, st.booleans()))


@given(entries=ENTRIES)
def test_a_chunk_is_read_as_it_was_written(entries: list[Entry]) -> None:
    assert snapshot.decode(snapshot.encode(entries)) == entries


def test_chunks_have_a_thousand_entries_and_split_no_key() -> None:
    entries = [Entry(f"{number // 3:05}", f"v{number}", None) for number in range(2_500)]
    some = list(snapshot.pieces(entries))
    assert [one for piece in some for one in piece] == entries
    assert [len(piece) for piece in some] == [1_002, 1_002, 496]
    assert list(snapshot.pieces([])) == []


@given(listed=LISTED)
def test_a_listing_in_a_file_is_read_as_it_was_written_and_again(listed: list[Listed]) -> None:
    with closing(ListingSpool()) as spool:
        spool.add(listed)
        spool.finish()
        assert (list(spool.read()), list(spool.read()), spool.entries) == (listed, listed, len(listed))


@given(keys=st.lists(KEYS))
def test_keys_in_a_file_come_in_the_order_of_utf8_and_once(keys: list[str]) -> None:
    with closing(KeySpool()) as spool:
        spool.add(keys)
        spool.add(keys[:2])
        assert list(spool.read()) == sorted(set(keys), key=str.encode)


@given(known=ENTRIES, listed=LISTED, recent=st.sets(KEYS), bounds=st.sets(KEYS, max_size=3))
def test_every_key_of_each_side_is_compared_once_in_order(
    known: list[Entry], listed: list[Listed], recent: set[str], bounds: set[str]
) -> None:
    known.sort(key=lambda entry: entry.key)
    listed.sort(key=lambda entry: entry.key)
    ends = [*sorted(bounds), None]
    lines, keys = Ahead(listed), Ahead(sorted(recent))
    groups = []
    for begin, end in zip(["", *sorted(bounds)], ends, strict=True):
        chunk = [one for one in known if begin <= one.key and (end is None or one.key < end)]
        groups += list(by_key(chunk, lines, keys, end))
    assert [group.key for group in groups] == sorted({one.key for one in [*known, *listed]} | recent)
    assert [one for group in groups for one in group.known] == known
    assert [one for group in groups for one in group.listed] == listed
    assert {group.key for group in groups if group.is_recent} == recent


@pytest.mark.parametrize(
    ("number", "total", "percent", "is_more"),
    [(10, 0, 10, False), (11, 0, 10, True), (100, 1000, 10, False), (101, 1000, 10, True), (1, 1000, 0, True)],
)
def test_a_number_exceeds_both_limits_or_none(number: int, total: int, percent: int, is_more: bool) -> None:
    assert exceeds(number, total, percent, 10) is is_more
