"""The shares of successive keys that Spark compares apart."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from app.listings import snapshot
from app.listings.comparison import Chunk
from app.listings.differences import Entry
from spark_jobs.jobs.watched_bucket import bounds_within, shares_of

KEYS = st.text(alphabet="ab/ü\U0001f600", min_size=1, max_size=4)


@given(known=st.lists(KEYS, max_size=30, unique=True), listed=st.lists(KEYS, max_size=60), count=st.integers(1, 9))
def test_each_key_has_one_share_and_each_chunk_is_with_its_keys(
    known: list[str], listed: list[str], count: int
) -> None:
    known.sort()
    places = [known[at : at + 3] for at in range(0, len(known), 3)]
    chunks = [Chunk(number, some[0]) for number, some in enumerate(places)]
    shares = shares_of(chunks, listed, count, lambda chunk: places[chunk.number][-1])
    begins = [share.begin for share in shares]
    assert begins == sorted(set(begins))
    assert begins[0] == ""
    assert [chunk for share in shares for chunk in share.chunks] == chunks
    for number, share in enumerate(shares):
        for chunk in share.chunks:
            assert {bisect_right(begins, key) - 1 for key in places[chunk.number]} == {number}
        # Where keys of a share come before its first chunk, nothing is known of them but in the very first one.
        if number and share.chunks:
            assert share.begin == share.chunks[0].first


def test_what_follows_the_only_chunk_is_divided() -> None:
    listed = [f"{number:03}" for number in range(100)]
    shares = shares_of([Chunk(1, "000")], listed, 5, lambda _: "030")
    assert [(share.begin, len(share.chunks)) for share in shares] == [("", 1), ("040", 0), ("060", 0), ("080", 0)]


@given(known=st.lists(KEYS, max_size=30, unique=True), listed=st.lists(KEYS, max_size=60), count=st.integers(1, 9))
def test_of_chunks_that_are_cut_each_share_has_at_most_two_shares_keys(
    known: list[str], listed: list[str], count: int
) -> None:
    entries = [Entry(key, "", None) for key in sorted(known)]
    chunks = [Chunk(at, entries[at].key) for at in range(0, len(entries), 3)]
    places = {chunk: entries[chunk.number : chunk.number + 3] for chunk in chunks}
    for chunk, bounds in bounds_within(chunks, listed, count).items():
        pieces = snapshot.cut(places.pop(chunk), bounds)
        assert all(pieces)
        places |= {Chunk(len(entries) + entries.index(piece[0]), piece[0].key): piece for piece in pieces}
    ordered = sorted(places, key=lambda chunk: chunk.first)
    assert [entry for chunk in ordered for entry in places[chunk]] == entries
    shares = shares_of(ordered, listed, count, lambda chunk: places[chunk][-1].key)
    begins = [share.begin for share in shares]
    bounds = shares_of([], listed, count, lambda _: "")
    assert all(
        sum(begin < bound.begin < end for bound in bounds) < 2 for begin, end in pairwise([*begins, "\U0010ffff" * 9])
    )


def test_a_share_begins_with_a_chunk_where_each_has_about_as_many_keys() -> None:
    listed = [f"{number:03}" for number in range(100)]
    chunks = [Chunk(number, listed[number]) for number in range(0, 100, 10)]
    shares = shares_of(chunks, listed, 4, lambda chunk: f"{chunk.number + 9:03}")
    assert [(share.begin, len(share.chunks)) for share in shares] == [("", 2), ("020", 3), ("050", 2), ("070", 3)]
