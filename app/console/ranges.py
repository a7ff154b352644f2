"""Which time a page shows: the ranges of its control, and how finely the curves of a time are drawn."""

from collections.abc import Mapping
from dataclasses import dataclass

from app.resources.declaration import parse_time

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
    since = max(0, parse_time("since", given["since"] or _DEFAULT))
    before = max(0, parse_time("before", given["before"])) if given["before"] else None
    length = ((now * 1000 if before is None else before) - since) / 1000
    width = next((width for longest, width in _WIDTHS if length <= longest + _EARLIER), _LONGEST_WIDTH)
    is_fine = width < _COARSE and now - since / 1000 <= _FINE_KEPT + _EARLIER
    step = _FINE if is_fine else _COARSE
    return Curves(since, before, step, max(step, width))
