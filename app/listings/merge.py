"""Merge what is known of a bucket with a listing of it, key by key, both in S3's order of keys."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Generic, NamedTuple, TypeVar

from app.listings.differences import Entry, Listed

T = TypeVar("T")


class Ahead(Generic[T]):
    """An iterator of which the next value can be seen; None after the last."""

    def __init__(self, values: Iterable[T]) -> None:
        self._values = iter(values)
        self.next = next(self._values, None)

    def take(self) -> T:
        """Return the next value."""
        if (value := self.next) is None:
            raise StopIteration
        self.next = next(self._values, None)
        return value


class Group(NamedTuple):
    """A key, what is known and what is listed of it, and whether the log has had an event of it lately."""

    key: str
    known: list[Entry]
    listed: list[Listed]
    is_recent: bool


def by_key(entries: Iterable[Entry], listed: Ahead[Listed], recent: Ahead[str], until: str | None) -> Iterator[Group]:
    """Yield each key before `until`, or each, that is known or listed or has had an event lately, in order."""
    known = Ahead((key, list(some)) for key, some in groupby(entries, lambda entry: entry.key))
    while True:
        heads = (known.next and known.next[0], listed.next and listed.next.key, recent.next)
        key = min((head for head in heads if head is not None), default=None)
        if key is None or (until is not None and key >= until):
            return
        yield Group(
            key,
            known.take()[1] if heads[0] == key else [],
            [*_of_key(listed, key)],
            heads[2] == key and recent.take() == key,
        )


def _of_key(listed: Ahead[Listed], key: str) -> Iterator[Listed]:
    """Take the entries of a key."""
    while listed.next is not None and listed.next.key == key:
        yield listed.take()
