"""Divide what is known of a bucket, and a listing of it, into shares of successive keys that are compared apart."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from app.listings.comparison import Chunk


@dataclass(frozen=True, slots=True)
class Share:
    """The keys from `begin` on, up to the next share's, and the chunks of what is known of them; none: nothing is."""

    begin: str
    chunks: Sequence[Chunk]


def divided(
    chunks: Sequence[Chunk], sample: Sequence[str], count: int, last_key: Callable[[Chunk], str]
) -> list[Share]:
    """Return about `count` shares of as many keys of a listing each, of which `sample` has some.

    A chunk is never divided, but what follows its last key is: a first listing that was interrupted leaves all of the
    rest of the bucket there, and one that is cut at the bounds `within` it has such a rest at each. `last_key` reads a
    chunk.
    """
    bounds = _bounds(sample, count)
    if not chunks:
        return [Share(begin, ()) for begin in ["", *sorted(bounds - {""})]]
    firsts = [chunk.first for chunk in chunks]
    cuts = set[str]()
    for number, some in _by_chunk(firsts, bounds).items():
        if number < 0:  # nothing is known of what comes before the first chunk
            cuts |= {*some, firsts[0]}
            continue
        cuts.add(firsts[number] if number else "")
        if len(some) > 1 and (beyond := {bound for bound in some if bound > last_key(chunks[number])}):
            cuts |= beyond | {*firsts[number + 1 : number + 2]}
    begins = ["", *sorted(cuts - {""})]
    shares: list[list[Chunk]] = [[] for _ in begins]
    for chunk in chunks:
        shares[bisect_right(begins, chunk.first) - 1].append(chunk)
    return [Share(begin, tuple(some)) for begin, some in zip(begins, shares, strict=True)]


def within(chunks: Sequence[Chunk], sample: Sequence[str], count: int) -> dict[Chunk, list[str]]:
    """Return the chunks that have keys of more than one of so many shares, and the bounds of these."""
    places = _by_chunk([chunk.first for chunk in chunks], _bounds(sample, count)) if chunks else {}
    return {chunks[number]: bounds for number, bounds in places.items() if number >= 0 and len(bounds) > 1}


def _bounds(sample: Sequence[str], count: int) -> set[str]:
    ordered = sorted(set(sample))
    return {ordered[len(ordered) * number // count] for number in range(1, count)} if ordered else set()


def _by_chunk(firsts: Sequence[str], bounds: Iterable[str]) -> dict[int, list[str]]:
    """Return the bounds within each chunk, by its place among the chunks; -1 for what comes before them."""
    inside: dict[int, list[str]] = {}
    for bound in bounds:
        inside.setdefault(bisect_right(firsts, bound) - 1, []).append(bound)
    return inside


def number_of(key: Column, shares: Sequence[Share]) -> Column:
    """Return the number of a key's share: a tree of comparisons, of which each key needs a few."""

    def among(low: int, high: int) -> Column:
        if low == high:
            return F.lit(low)
        middle = (low + high + 1) // 2
        return F.when(key < F.lit(shares[middle].begin), among(low, middle - 1)).otherwise(among(middle, high))

    return among(0, len(shares) - 1)
