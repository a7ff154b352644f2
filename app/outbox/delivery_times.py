"""Collect how long deliveries took, from recording to settlement, as histograms of bounded size that can be added.

Four intervals for each doubling: what is read from a histogram is at most 19 % above the true time, and never below.
Workers report the histogram of some seconds as a row of a table. The process that takes the samples of the time series
(`app.outbox.series`) takes the rows away: each is counted once.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import ceil

import sqlalchemy as sa

from app.outbox import tables
from app.outbox.engine.many_rows import chunks
from app.outbox.policies import DELIVERY_TIMES

Histogram = Counter[int]  # events, by the upper bound (ms) of the interval in which their times are

_BOUNDS = sorted({ceil(2 ** (step / 4)) for step in range(4 * 32 + 1)})  # ms, up to 49 days


def histogram(received: Iterable[int], now: int) -> Histogram:
    """Return the times of events that were recorded at `received` and settled at `now` (ms)."""
    deliveries: Histogram = Counter()
    for at, events in Counter(received).items():
        deliveries[_bound(now - at)] += events
    return deliveries


def percentile(times: Histogram, share: float) -> int | None:
    """Return the time (ms) within which this share of the events were delivered; None without any."""
    rank = max(1, ceil(share * times.total()))
    for bound, events in sorted(times.items()):
        rank -= events
        if rank <= 0:
            return bound
    return None


def encode(times: Histogram) -> str:
    """Return the histogram as text of at most 4,000 characters."""
    return " ".join(f"{bound}:{events}" for bound, events in sorted(times.items()))


def decode(*texts: str) -> Histogram:
    """Return the sum of the histograms that `encode` wrote; thousands are added in half the time at once."""
    numbers = list(map(int, " ".join(texts).replace(":", " ").split()))
    deliveries: dict[int, int] = {}
    for bound, events in zip(numbers[::2], numbers[1::2], strict=True):
        deliveries[bound] = deliveries.get(bound, 0) + events
    return Counter(deliveries)


def report(connection: sa.Connection, times: Mapping[int, Histogram]) -> None:
    """Add a worker's histograms, by target."""
    rows = [{"target_id": target_id, "times": encode(of_one)} for target_id, of_one in sorted(times.items()) if of_one]
    if rows:
        connection.execute(tables.delivery_times.insert(), rows)


def take_reports(connection: sa.Connection) -> Mapping[int, Histogram]:
    """Remove the oldest reports and return their sums by target; a concurrent call waits for this transaction."""
    d = tables.delivery_times.c
    query = sa.select(tables.delivery_times).order_by(d.id).limit(DELIVERY_TIMES.batch_reports).with_for_update()
    rows: Sequence[sa.Row[tuple[int, int, str]]] = connection.execute(query).all()
    sums: defaultdict[int, Histogram] = defaultdict(Counter)
    for row in rows:
        sums[row.target_id].update(decode(row.times))
    # By id, and not up to one: a row with a smaller id may be committed later.
    for some in chunks([row.id for row in rows]):
        connection.execute(tables.delivery_times.delete().where(d.id.in_(some)))
    return sums


def _bound(ms: int) -> int:
    return _BOUNDS[min(bisect_left(_BOUNDS, ms), len(_BOUNDS) - 1)]
