"""Compare a listing with the chunks of what is known of a bucket: what replaces each, with the events of its keys.

Both are in S3's order of keys, by which they are merged. A worker does it with the whole bucket, Spark with many shares
of it at once; both come to the same events.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from operator import itemgetter
from typing import Generic, NamedTuple, TypeVar

from app.events.model import Event
from app.events.names import NULL
from app.events.own_events import DELETE
from app.listings import snapshot
from app.listings.differences import (
    Counts,
    Decided,
    Entry,
    Listed,
    LoggedEvent,
    Run,
    decide,
    differing_versions,
    differs,
    unchanged,
)

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


_KEYS_AT_ONCE = 500  # for which the log is asked


@dataclass(frozen=True, slots=True)
class Chunk:
    """Where a chunk begins."""

    number: int
    first: str


@dataclass(frozen=True, slots=True)
class Replacement:
    """Chunks to remove, those in their place (number, first key and body), and the events of their keys.

    `found` counts the differences of which these events were made.
    """

    removed: Sequence[int]
    added: Sequence[tuple[int, str, bytes]]
    events: Sequence[Event] = ()
    found: Counts = field(default_factory=Counts)


class Part:
    """A part of a chunk: what was known of its keys, from `begin` on, and what is known of them from now on."""

    def __init__(self, number: int | None, known: Sequence[Entry], numbers: Iterator[int], begin: int = 0) -> None:
        self._number, self._known, self._numbers = number, known, numbers
        self._begin = self._end = begin
        self._entries: list[Entry] = []
        self._events: list[Event] = []
        self.counts = Counts()

    @property
    def is_changed(self) -> bool:
        """Whether anything has to be written."""
        return bool(self._events) or self._entries != self._known[self._begin : self._end]

    def is_full(self, most: int) -> bool:
        """Return whether it has as many events as one commit may have, or as many more entries as a chunk."""
        grown = len(self._entries) - (self._end - self._begin)
        return len(self._events) >= most or grown >= snapshot.CHUNK_ENTRIES

    def add(self, group: Group, decided: Decided) -> None:
        """Add what was decided of the next key."""
        self._end += len(group.known)
        self._entries += decided.entries
        self._events += decided.events
        self.counts.add(decided.counts)

    def replacement(self) -> Replacement:
        """Return what replaces the chunk: what is known now, and apart from it what has not been compared yet."""
        added = [(next(self._numbers), some[0].key, snapshot.encode(some)) for some in snapshot.pieces(self._entries)]
        removed = [] if self._number is None else [self._number]
        self._number = None
        if left := self._known[self._end :]:
            self._number = next(self._numbers)
            added.append((self._number, left[0].key, snapshot.encode(left)))
        counts = self.counts
        found = Counts(created=counts.created, changed=counts.changed, removed=counts.removed)
        return Replacement(removed, added, self._events, found)

    def rest(self) -> "Part":
        """Return the part with the keys that follow, once this one is replaced."""
        return Part(self._number, self._known, self._numbers, self._end)


def compared(
    chunks: Sequence[Chunk],
    *,
    read: Callable[[int], bytes],
    logged: Callable[[Mapping[str, Collection[str]]], Iterator[Mapping[str, Sequence[LoggedEvent]]]],
    listed: Iterable[Listed],
    recent: Iterable[str],
    run: Run,
    numbers: Iterator[int],
    most: int,
    tell: Callable[[], None] = lambda: None,
) -> Iterator[Part]:
    """Yield the parts of chunks, or of all keys if there is none, each full part before what follows it.

    `read` returns the body of a chunk, `logged` yields the log's events of each of some keys, for some of these at a
    time, in order, and is given which of their versions have to be decided about; `listed` and `recent`, keys of which
    the log has new events, are in order, and of no key before the first chunk but for the very first one. New chunks
    get the next of the `numbers`. A part has at most so many events, but for those of one key. `tell` is called every
    so often, and may raise.
    """
    places: Sequence[Chunk | None] = chunks or [None]
    ends = [chunk.first for chunk in chunks[1:]]
    all_listed, all_recent = Ahead(listed), Ahead(recent)
    for place, until in zip(places, [*ends, None], strict=True):
        known = snapshot.decode(read(place.number)) if place else []
        part = Part(place.number if place else None, known, numbers)
        for groups in _batches(by_key(known, all_listed, all_recent, until)):
            tell()
            for group, decided in _decided(groups, logged, run, tell):
                part.add(group, decided)
                if part.is_full(most):
                    yield part
                    part = part.rest()
        yield part


def _decided(
    groups: Sequence[Group],
    logged: Callable[[Mapping[str, Collection[str]]], Iterator[Mapping[str, Sequence[LoggedEvent]]]],
    run: Run,
    tell: Callable[[], None],
) -> Iterator[tuple[Group, Decided]]:
    asked = {
        group.key: differing_versions(group.known, group.listed)
        for group in groups
        if group.is_recent or differs(group.known, group.listed)
    }
    answers = iter([dict.fromkeys(asked, ())]) if run.remembers else logged(asked)
    found = dict[str, Sequence[LoggedEvent]]()
    for group in groups:
        if group.key not in asked:
            yield group, unchanged(group.known, group.listed)
            continue
        if group.key not in found:
            found = dict(next(answers))
            tell()
        yield group, decide(group.key, group.known, group.listed, found[group.key], run)


def put_off(replacement: Replacement, keys: Collection[str], known: Sequence[Entry]) -> Replacement:
    """Return what replaces the same chunks and leaves some keys as they were `known`, without their events."""
    there = {(entry.key, entry.version or NULL) for entry in known if entry.known is not None}
    found, left = replacement.found, Counts()
    for event in replacement.events:
        if event.key not in keys:
            continue
        if event.name == DELETE:
            left.removed += 1
        # An object that was reported and changed once more was not known, and yet is a changed one.
        elif left.changed < found.changed and (
            (event.key, event.version or NULL) in there or left.created == found.created
        ):
            left.changed += 1
        else:
            left.created += 1
    bodies = {number: snapshot.decode(body) for number, _, body in replacement.added}
    # A key before the first new chunk gets one of its own, by the number of the old chunk: what follows may have been
    # compared apart.
    firsts = [("", number) for number in replacement.removed[:1]]
    firsts += [(first, number) for number, first, _ in replacement.added]
    restored = [entry for entry in known if entry.key in keys]
    for number, entries in bodies.items():
        bodies[number] = [entry for entry in entries if entry.key not in keys]
    for entry in restored:
        at = bisect_right(firsts, entry.key, key=itemgetter(0))
        bodies.setdefault(firsts[at - 1][1], []).append(entry)
    added = []
    for number, entries in bodies.items():
        if entries:
            entries.sort(key=lambda entry: entry.key)
            added.append((number, entries[0].key, snapshot.encode(entries)))
    added.sort(key=itemgetter(1))
    events = [event for event in replacement.events if event.key not in keys]
    return Replacement(replacement.removed, added, events, found.less(left))


def _batches(groups: Iterator[Group]) -> Iterator[list[Group]]:
    while some := list(islice(groups, _KEYS_AT_ONCE)):
        yield some
