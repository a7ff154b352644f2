"""Divide a bucket without folders into key ranges: ask for the first key after texts that may lie between its keys.

Nothing is known of the number of keys in a range, so each is halved by the characters that its keys have where they
first differ. A range that is much longer than others costs time, and nothing else.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from app.listings.pages import is_bound

FirstAfter = Callable[[str], str | None]  # the first key after a text; None for no key

_REQUESTS = 4  # at once
_ASCII_END, _LAST = 0x7E, 0xD7FF  # the last character that ASCII, or any bound, has
_MAX_DIVISIONS = 512  # of one bucket


def divide(first_after: FirstAfter, bounds: Sequence[str], count: int) -> list[str]:
    """Return keys that divide the ranges between `bounds` so that there are `count` ranges, fewer if that is not easy.

    The last range is that of all keys after the last bound. Each of the keys was there a moment ago.
    """
    first = first_after("")
    if first is None:
        return []
    ends = sorted({first, *bounds})
    ranges: list[tuple[str, str | None]] = list(zip(ends, [*ends[1:], None], strict=True))
    found, asked = list[str](), 0
    with ThreadPoolExecutor(_REQUESTS) as threads:
        while ranges and len(ends) + len(found) < count and asked < _MAX_DIVISIONS:
            asked += len(ranges)
            middles = list(threads.map(lambda ends: middle(first_after, *ends), ranges))
            divided = list[tuple[str, str | None]]()
            for (start, end), key in zip(ranges, middles, strict=True):
                if key is not None:
                    found.append(key)
                    divided += [(start, key), (key, end)]
            ranges = divided
    return sorted(found)


def middle(first_after: FirstAfter, start: str, end: str | None) -> str | None:
    """Return a key between a key and another, or the end of the bucket; None if none is found there."""

    def has_more(text: str) -> str | None:
        """Return the first key after a text, if it is in the range."""
        key = first_after(text) if is_bound(text) else None
        return key if key is not None and key > start and (end is None or key < end) else None

    certain = _common(start, end) if end is not None else 0
    length = _shared(has_more, start, certain)
    prefix, limit = start[:length], ord(end[length]) if end is not None and length == certain < len(end) else _LAST
    lowest = ord(start[length]) if length < len(start) else 0x1F
    highest = _greatest(has_more, prefix, lowest, min(limit, _LAST))
    return has_more(prefix + chr((lowest + highest + 1) // 2)) if lowest < highest else None


def _common(one: str, other: str) -> int:
    """Return how many characters two texts begin with together."""
    return next(
        (at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other))
    )


def _shared(has_more: Callable[[str], str | None], start: str, certain: int) -> int:
    """Return how many characters of a key all later keys of the range begin with: `certain` or more."""
    shared, differs = certain, len(start) + 1
    while differs - shared > 1:
        length = (shared + differs) // 2 if not certain else shared + 1  # of a part of a range it is hardly ever more
        following = _following(start[:length])
        if following is None or has_more(following) is None:
            shared = length
        else:
            differs = length
    return shared


def _following(prefix: str) -> str | None:
    """Return a text after which no key begins with a prefix; None if there is none that is a bound."""
    last = ord(prefix[-1])
    return None if last >= _LAST else prefix[:-1] + chr(last + 1)


def _greatest(has_more: Callable[[str], str | None], prefix: str, lowest: int, limit: int) -> int:
    """Return the last character for which there are keys after the prefix with it; none is after `limit`."""
    least, most = lowest, min(limit, _ASCII_END)
    if lowest >= most or (limit > most and has_more(prefix + chr(most)) is not None):
        least, most = max(lowest, most), limit
    while least < most:
        at = (least + most + 1) // 2
        if has_more(prefix + chr(at)) is not None:
            least = at
        else:
            most = at - 1
    return least
