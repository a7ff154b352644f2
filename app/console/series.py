"""Draw curves: which time a page shows and how finely, and samples of totals turned into rates. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, pairwise
from typing import Any

from app.resources.declaration import TIME

RANGES = ("15m", "1h", "6h", "24h", "7d", "30d")
_DEFAULT = RANGES[0]
_FINE, _COARSE, _FINE_KEPT = 10, 300, 86400  # seconds between two samples; for how long the fine ones are kept
# How long a time is at most, and the width of a point in it, in seconds.
_WIDTHS = ((900, 10), (3600, 30), (6 * 3600, 300), (86400, 900), (7 * 86400, 7200))
_LONGEST_WIDTH = 28_800  # seconds
_EARLIER = 1  # second by which "24h" ago is earlier when the samples are read


@dataclass(frozen=True, slots=True)
class Curves:
    """The time that curves show: from `since` to `before` (ms; None: now), by samples every `step` seconds.

    A point is of `width` seconds.
    """

    since: int
    before: int | None
    step: int
    width: int


def curves(given: Mapping[str, str], now: float) -> Curves:
    """Return how to draw the time that `since` and `before` name; `now` is in seconds. Raises `BadMember`."""
    since = max(0, TIME.read("since", given["since"] or _DEFAULT))
    before = max(0, TIME.read("before", given["before"])) if given["before"] else None
    length = ((now * 1000 if before is None else before) - since) / 1000
    width = next((width for longest, width in _WIDTHS if length <= longest + _EARLIER), _LONGEST_WIDTH)
    is_fine = width < _COARSE and now - since / 1000 <= _FINE_KEPT + _EARLIER
    step = _FINE if is_fine else _COARSE
    return Curves(since, before, step, max(step, width))


_FLOWS = ("recorded", "delivered", "failed", "dead_lettered")
_RECENT_SECONDS = 60  # since the newest sample, of which there is one every ten seconds while a drain runs


@dataclass(frozen=True, slots=True)
class Point:
    """What happened up to `at` (seconds since 1970): events in a second, and the backlog at the end of that time."""

    at: int
    recorded: float
    delivered: float
    failed: float
    dead_lettered: float
    backlog: int
    oldest_age: float | None
    p50: float | None = None  # seconds from recording to delivery, in the worst sample of the time
    p99: float | None = None


def points(samples: Sequence[Mapping[str, Any]], *, width: int) -> list[Point]:
    """Return a point for each `width` seconds in which there are samples.

    A total that falls was counted from 0 again: the target was removed and created again. Nothing is known of that
    time.
    """
    groups = [list(group) for _, group in groupby(samples, lambda sample: _seconds(sample["at"]) // width)]
    result = []
    for earlier, later in pairwise(groups):
        before, after = earlier[-1], later[-1]
        begun, ended = _seconds(before["at"]), _seconds(after["at"])
        rates = {name: max(0, after[name] - before[name]) / max(1, ended - begun) for name in _FLOWS}
        result.append(
            Point(
                at=ended,
                backlog=after["backlog"],
                oldest_age=after["oldest_age"],
                p50=_greatest(later, "p50"),
                p99=_greatest(later, "p99"),
                **rates,
            )
        )
    return result


def newest(curve: Sequence[Point], now: float) -> Point | None:
    """Return what happened last; None if there are no samples of now (seconds since 1970), so that nobody knows."""
    return curve[-1] if curve and curve[-1].at > now - _RECENT_SECONDS else None


def newest_times(curve: Sequence[Point], now: float) -> tuple[float | None, float | None]:
    """Return the greatest median and 99th percentile of the last minute's delivery times (s); None of no deliveries."""
    recent = [point for point in curve if point.at > now - _RECENT_SECONDS]
    return _most(point.p50 for point in recent), _most(point.p99 for point in recent)


def incoming_rate(intake: Sequence[Mapping[str, Any]]) -> float | None:
    """Return how many events came in in a second by all ways together, each event once; None if nobody knows."""
    # Nothing has ever come by a way that has recorded nothing.
    rates = [0.0 if each["rate"] is None and not each["recorded"] else each["rate"] for each in intake]
    return None if None in rates else sum(rates)


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _greatest(samples: Sequence[Mapping[str, Any]], name: str) -> float | None:
    return _most(sample.get(name) for sample in samples)


def _seconds(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())
