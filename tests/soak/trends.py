"""Decide whether a measure grows: what outliers and a single step do not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

POINTS = 240  # a longer series is thinned to so many medians: every pair of points is looked at
STEADY = 0.25  # share of the slope that each half has to have for itself: with one step a half has none
WARM_UP = 1 / 3  # share of a run that is not judged: caches fill, pools open, and the first outage passes
LEAST_WARM_UP = 300.0  # seconds of it, but never more than half of a run: so long do processes grow by themselves

Sample = tuple[float, float]  # seconds, value


@dataclass(frozen=True)
class Limit:
    """How much a measure may grow over the judged part of a run: so much, and such a share of its median."""

    absolute: float
    relative: float = 0.0

    def of(self, values: Sequence[float]) -> float:
        """The limit for these values."""
        return self.absolute + self.relative * abs(median(values))


@dataclass(frozen=True)
class Trend:
    """What a series came to: `first` and `last` are medians of its ends, `slope` is per second, `drift` over `span`.

    It is `steady` when each half of the series rises for itself.
    """

    first: float
    last: float
    slope: float
    span: float
    steady: bool
    limit: float

    @property
    def drift(self) -> float:
        """The growth over the judged part of the run."""
        return self.slope * self.span

    @property
    def grows(self) -> bool:
        """Whether it is a trend: larger than the limit, and no single step."""
        return self.drift > self.limit and self.steady


def trend(samples: Sequence[Sample], limit: Limit) -> Trend:
    """The trend of samples in order of time; the warm-up is theirs to have left out. ValueError for fewer than 10."""
    if len(samples) < 10:
        raise ValueError(f"{len(samples)} samples are too few for a trend")
    points = list(_thinned(samples))
    slope, middle = _slope(points), len(points) // 2
    steady = min(_slope(points[:middle]), _slope(points[middle:])) > STEADY * slope
    values = [value for _, value in samples]
    end = max(1, len(values) // 10)
    span = samples[-1][0] - samples[0][0]
    return Trend(median(values[:end]), median(values[-end:]), slope, span, steady, limit.of(values))


def warm_up(span: float) -> float:
    """How many seconds of a run of so many are not judged."""
    return min(max(WARM_UP * span, LEAST_WARM_UP), span / 2)


def judged(samples: Sequence[Sample]) -> Sequence[Sample]:
    """The samples after the warm-up of the time that all of them span."""
    if not samples:
        return samples
    begin = samples[0][0] + warm_up(samples[-1][0] - samples[0][0])
    return [sample for sample in samples if sample[0] >= begin]


def envelope(samples: Sequence[Sample], period: float) -> list[Sample]:
    """For each sample the largest value of so many seconds before it: a saw with that period becomes a level line."""
    return [(at, max(value for when, value in samples if at - period <= when <= at)) for at, _ in samples]


def _slope(points: Sequence[Sample]) -> float:
    """Theil-Sen: the median of the slopes of all pairs."""
    return median((later - sooner) / (at - before) for (before, sooner), (at, later) in combinations(points, 2))


def _thinned(samples: Sequence[Sample]) -> Iterator[Sample]:
    size = -(-len(samples) // POINTS)
    for first in range(0, len(samples), size):
        group = samples[first : first + size]
        yield median(at for at, _ in group), median(value for _, value in group)
