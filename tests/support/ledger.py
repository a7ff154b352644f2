"""Compare what was recorded with what has arrived, counted as it comes: for runs too long to keep every event."""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from tests.support.target_readers import Record, path, text

Span = tuple[float, float]  # when a post began and when it was answered, in seconds of one clock
UNKNOWN: Span = (-math.inf, math.inf)


class Expected(Enum):
    """What is expected of one event at one target."""

    REQUIRED = "it has to arrive"
    ALLOWED = "it may arrive: it was posted while a rule or the target changed"
    FORBIDDEN = "it must not arrive"


@dataclass(frozen=True)
class Window:
    """A time in which a rule named a target: each end is a request, from its sending to its answer."""

    opening: float = -math.inf
    opened: float = -math.inf
    closing: float = math.inf
    closed: float = math.inf

    def expects(self, span: Span) -> Expected:
        """What is expected of an event whose post took this span."""
        began, answered = span
        if self.opened < began and answered < self.closing:
            return Expected.REQUIRED
        outside = answered < self.opening or self.closed < began
        return Expected.FORBIDDEN if outside else Expected.ALLOWED


ALWAYS = Window()


def expected(windows: Iterable[Window], span: Span) -> Expected:
    """What several windows together expect: the most that one of them does."""
    answers = {window.expects(span) for window in windows}
    return next((each for each in Expected if each in answers), Expected.FORBIDDEN)


@dataclass
class Stream:
    """What one log target gets: events of the objects that `selects` names, recorded within one of the windows.

    `ordered` names the objects whose order is promised: a replayed dead letter comes after its successors. A stream
    that is not `complete` belongs to a target that was removed: what had not arrived by then need not arrive.
    """

    name: str
    windows: Sequence[Window] = (ALWAYS,)
    selects: Callable[[str], bool] = lambda _: True
    ordered: Callable[[str], bool] = lambda _: True
    complete: bool = True


@dataclass(frozen=True)
class Counts:
    """What the arrivals came to."""

    unexpected: int = 0
    repeated: int = 0
    out_of_order: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.unexpected + other.unexpected,
            self.repeated + other.repeated,
            self.out_of_order + other.out_of_order,
        )

    def __sub__(self, other: Counts) -> Counts:
        return Counts(
            self.unexpected - other.unexpected,
            self.repeated - other.repeated,
            self.out_of_order - other.out_of_order,
        )


@dataclass
class _Object:
    """The recorded events of one object: their places in its order, and when each was posted."""

    places: dict[bytes, int] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)  # places of those that the outbox lost by a failover


@dataclass
class _Arrivals:
    stream: Stream
    reached: Counter[str] = field(default_factory=Counter)  # the place after the newest that has arrived
    last: dict[str, int] = field(default_factory=dict)  # the place that arrived last
    gaps: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))  # required, and passed over
    passed: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))  # allowed, and passed over
    counts: Counts = field(default_factory=Counts)


@dataclass
class Ledger:
    """Every recorded event as a digest with its place among those of its object, and how far each stream has come."""

    _objects: dict[str, _Object] = field(default_factory=lambda: defaultdict(_Object))
    _streams: dict[str, _Arrivals] = field(default_factory=dict)

    def follow(self, stream: Stream) -> None:
        """Expect what the stream says; again with other windows when its rule has changed."""
        known = self._streams.setdefault(stream.name, _Arrivals(stream))
        known.stream = stream

    def record(self, records: Iterable[Record], spans: Iterable[Span]) -> None:
        """Expect these after those before them, in each stream that selects them."""
        for record, span in zip(records, spans, strict=True):
            entry = self._objects[path(record)]
            entry.places[_digest(record)] = len(entry.spans)
            entry.spans.append(span)

    def lose(self, records: Iterable[Record]) -> None:
        """Expect these no more: the outbox's database failed over to a state without them. They may have arrived."""
        for record in records:
            name = path(record)
            place = self._objects[name].places[_digest(record)]
            self._objects[name].gone.add(place)
            for arrivals in self._streams.values():
                if place in arrivals.gaps[name]:
                    arrivals.gaps[name].remove(place)
                    arrivals.passed[name].add(place)

    def arrive(self, stream: str, records: Iterable[Record]) -> None:
        """Count what has come to a stream since the last call, in its order."""
        arrivals = self._streams[stream]
        for record in records:
            arrivals.counts += self._arrived(arrivals, path(record), record)

    def _arrived(self, arrivals: _Arrivals, name: str, record: Record) -> Counts:
        place = self._objects[name].places.get(_digest(record)) if name in self._objects else None
        if place is None or self._expects(arrivals.stream, name, place) is Expected.FORBIDDEN:
            return Counts(unexpected=1)
        arrivals.last[name] = place
        strict = arrivals.stream.ordered(name)
        if place >= arrivals.reached[name]:
            skipped = self._skip(arrivals, name, place)
            return Counts(out_of_order=int(skipped and strict))
        if place in arrivals.gaps[name]:
            arrivals.gaps[name].remove(place)
            return Counts()  # counted when it was passed over
        if place in arrivals.passed[name]:
            arrivals.passed[name].remove(place)
            return Counts(out_of_order=int(strict))
        return Counts(repeated=1)

    def _skip(self, arrivals: _Arrivals, name: str, place: int) -> bool:
        """Move on to `place`; whether that passes over an event that has to arrive."""
        skipped = False
        for between in range(arrivals.reached[name], place):
            expects = self._expects(arrivals.stream, name, between)
            if expects is Expected.REQUIRED:
                arrivals.gaps[name].add(between)
                skipped = True
            elif expects is Expected.ALLOWED:
                arrivals.passed[name].add(between)
        arrivals.reached[name] = place + 1
        return skipped

    def _expects(self, stream: Stream, name: str, place: int) -> Expected:
        if not stream.selects(name):
            return Expected.FORBIDDEN
        expects = expected(stream.windows, self._objects[name].spans[place])
        gone = expects is Expected.REQUIRED and place in self._objects[name].gone
        return Expected.ALLOWED if gone else expects

    def lost(self) -> int:
        """How many events that have to arrive have not, in all streams."""
        return sum(self._missing(arrivals) for arrivals in self._streams.values() if arrivals.stream.complete)

    def _missing(self, arrivals: _Arrivals) -> int:
        ahead = sum(
            self._expects(arrivals.stream, name, place) is Expected.REQUIRED
            for name, entry in self._objects.items()
            for place in range(arrivals.reached[name], len(entry.spans))
        )
        return ahead + sum(map(len, arrivals.gaps.values()))

    def went_back(self) -> set[tuple[str, str]]:
        """Streams and objects whose last arrival is older than another before it: the newest has to be seen last."""
        return {
            (arrivals.stream.name, name)
            for arrivals in self._streams.values()
            for name, place in arrivals.last.items()
            if not self._objects[name].gone.issuperset(range(place + 1, arrivals.reached[name]))
            and arrivals.stream.ordered(name)
        }

    def total(self) -> Counts:
        """The counts of all streams together."""
        return sum((arrivals.counts for arrivals in self._streams.values()), Counts())


def _digest(record: Record) -> bytes:
    return hashlib.blake2b(text(record), digest_size=12).digest()
