"""Write and read what is known of a bucket in chunks: entries in the order of their keys, as compressed JSON."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from operator import attrgetter

import orjson
import zstandard

from app.listings.differences import Content, Entry, Pending

CHUNK_ENTRIES = 1000  # about 30 KB; what is rewritten when one of them changes


def encode(entries: Iterable[Entry]) -> bytes:
    """Return the entries as a chunk."""
    plain = [[one.key, one.version, one.known, one.pending] for one in entries]
    return zstandard.compress(orjson.dumps(plain, default=list))


def decode(chunk: bytes) -> list[Entry]:
    """Return the entries of a chunk."""
    read = orjson.loads(zstandard.decompress(chunk))
    return [Entry(key, version, _content(known), _pending(pending)) for key, version, known, pending in read]


def pieces(entries: Sequence[Entry]) -> Iterable[Sequence[Entry]]:
    """Yield entries in chunks of a good size; entries of one key stay together."""
    start = 0
    for index in range(1, len(entries) + 1):
        is_last = index == len(entries)
        if is_last or (index - start >= CHUNK_ENTRIES and entries[index].key != entries[index - 1].key):
            yield entries[start:index]
            start = index


def cut(entries: Sequence[Entry], bounds: Iterable[str]) -> Sequence[Sequence[Entry]]:
    """Return entries, in the order of their keys, in pieces that each end before one of some keys; none is empty."""
    places = [bisect_left(entries, bound, key=attrgetter("key")) for bound in sorted(bounds)]
    ends = [*places, len(entries)]
    return [entries[begin:end] for begin, end in zip([0, *places], ends, strict=True) if begin < end]


def _content(plain: Sequence[object] | None) -> Content | None:
    return None if plain is None else Content(*plain)  # type: ignore[arg-type]  # as `encode` has written it


def _pending(plain: Sequence[object] | None) -> Pending | None:
    if plain is None:
        return None
    content, *times = plain
    return Pending(_content(content), *times)  # type: ignore[arg-type]  # as above
