"""What was recorded and what has arrived, counted as it comes: for runs too long to keep every event."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.acceptance.arrivals import Record, path, text


@dataclass
class Counts:
    """What the arrivals at one target came to."""

    unexpected: int = 0
    repeated: int = 0
    out_of_order: int = 0


@dataclass
class _Arrivals:
    reached: Counter[str] = field(default_factory=Counter)
    gaps: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    counts: Counts = field(default_factory=Counts)


@dataclass
class Ledger:
    """Every recorded event as a digest with its place among those of its object, and how far each target has come."""

    _lines: dict[str, dict[bytes, int]] = field(default_factory=lambda: defaultdict(dict))
    _targets: dict[str, _Arrivals] = field(default_factory=lambda: defaultdict(_Arrivals))

    def record(self, records: Iterable[Record]) -> None:
        """Expect these after those before them, at each target."""
        for record in records:
            line = self._lines[path(record)]
            line[_digest(record)] = len(line)

    def arrive(self, target: str, records: Iterable[Record]) -> None:
        """Count what has come to a target since the last call, in its order."""
        arrivals = self._targets[target]
        for record in records:
            self._arrived(arrivals, path(record), record)

    @staticmethod
    def _skip(arrivals: _Arrivals, name: str, place: int) -> None:
        arrivals.counts.out_of_order += 1
        arrivals.gaps[name].update(range(arrivals.reached[name], place))

    def _arrived(self, arrivals: _Arrivals, name: str, record: Record) -> None:
        place = self._lines[name].get(_digest(record))
        if place is None:
            arrivals.counts.unexpected += 1
        elif place >= arrivals.reached[name]:
            if place > arrivals.reached[name]:
                self._skip(arrivals, name, place)
            arrivals.reached[name] = place + 1
        elif place in arrivals.gaps[name]:
            arrivals.gaps[name].remove(place)
        else:
            arrivals.counts.repeated += 1

    def lost(self) -> int:
        """How many events have not come to a target, of all targets."""
        return sum(
            sum(len(line) - arrivals.reached[name] for name, line in self._lines.items())
            + sum(map(len, arrivals.gaps.values()))
            for arrivals in self._targets.values()
        )

    def total(self) -> Counts:
        """The counts of all targets together."""
        counts = [arrivals.counts for arrivals in self._targets.values()]
        return Counts(
            sum(each.unexpected for each in counts),
            sum(each.repeated for each in counts),
            sum(each.out_of_order for each in counts),
        )


def _digest(record: Record) -> bytes:
    return hashlib.blake2b(text(record), digest_size=12).digest()
