"""Keep time series of each target's counters: a sample every 10 s for a day, and every 5 minutes for 90 days.

So are those of what comes in: `recorded` of a sample whose `target_id` is `REQUESTS` or `of_source` counts the events
that requests or a source have recorded.

The table is a ring: a sample replaces the one that had its place a day (or 90 days) before, whatever time that one
has. So the number of rows is bounded without a purge, and a clock that jumps overwrites as many samples as it is wrong
for, and removes no others. The places of a removed target are freed in the same way.

A sample also has how long deliveries took, from recording to settlement, as a histogram of bounded size. It has four
intervals for each doubling: what is read from it is at most 19 % above the true time, and never below. Workers report
the histogram of some seconds as a row of a table. The process that takes the samples takes the rows away: each is
counted once.
"""

import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from operator import attrgetter
from typing import Any

import sqlalchemy as sa

from app.outbox import log_head, tables
from app.outbox.admin.counters import cursor_sums, oldest_undelivered
from app.outbox.engine import many_rows
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database
from app.outbox.engine.many_rows import chunks
from app.outbox.policies import DELIVERY_TIMES

Histogram = Counter[int]  # events, by the upper bound (ms) of the interval in which their times are


@dataclass(frozen=True, slots=True)
class Resolution:
    """How far apart samples are, in seconds, and how many of a target are kept."""

    step: int
    kept: int

    def begin(self, at: int) -> int:
        """Return when the sample to which this time belongs begins; both are ms."""
        return at - at % (self.step * 1000)

    def slot(self, at: int) -> int:
        """Return the place of a sample in the ring."""
        return at // (self.step * 1000) % self.kept


FINE = Resolution(10, 24 * 360)
COARSE = Resolution(300, 90 * 288)
RESOLUTIONS: Mapping[int, Resolution] = {FINE.step: FINE, COARSE.step: COARSE}

REQUESTS = 0  # in place of a target's id
_RATE_MS = 20_000  # over which an incoming rate is taken
_RECENT_MS = 60_000  # since the newest sample; before that nobody knows the rate of now

_TOTALS = ("recorded", "delivered", "superseded", "failed", "dead_lettered", "discarded")
_NUMBERS = attrgetter(*_TOTALS, "backlog", "oldest_age")  # in the order of the table's columns


@dataclass(frozen=True, slots=True)
class Sample:
    """One target's counters at `at` (ms, the beginning of the step); only `recorded` of what comes in.

    `backlog` and `oldest_age` (ms) are values of the moment, or the greatest ones in the 5 minutes; an age of 0 means
    that no event waits, None that it was not measured. All others are totals, of which two samples differ by what
    happened between them: `failed` counts attempts, `dead_lettered` events that became dead letters. `times` are the
    delivery times that workers have reported since the sample before, without those of replays.
    """

    target_id: int
    at: int
    recorded: int
    delivered: int = 0
    superseded: int = 0
    failed: int = 0
    dead_lettered: int = 0
    discarded: int = 0
    backlog: int = 0
    oldest_age: int | None = 0
    times: Histogram = field(default_factory=Counter)


def take_sample(database: Database, *, seconds: float = 0.2) -> bool:
    """Store a sample of every target, unless this step has one already; return whether it was stored.

    After `seconds` of searching for oldest events, the ages of the remaining targets are left out; each time another
    target is the first. Safe to run concurrently: one caller stores its samples.
    """
    with database.snapshot() as connection:
        now = database_now(connection)
        at = FINE.begin(now)
        if _is_taken(connection, at):
            return False
        samples = _measure(connection, at, now, seconds)
    try:
        with database.writing() as connection:
            times = take_reports(connection)
            samples = [replace(one, times=times[one.target_id]) if one.target_id in times else one for one in samples]
            _clear(connection, FINE, at, but=at)
            _insert(connection, FINE, at, samples)
            _merge(connection, COARSE, at, samples)
    except sa.exc.IntegrityError:  # another process has stored a sample of this step
        return False
    return True


def merged(before: Sample | None, sample: Sample, begin: int) -> Sample:
    """Return the sample of a step that begins at `begin`, after one more sample in it, in whatever order they come."""
    if before is None:
        return replace(sample, at=begin)
    ages = [age for age in (before.oldest_age, sample.oldest_age) if age is not None]
    greatest = {name: max(getattr(before, name), getattr(sample, name)) for name in (*_TOTALS, "backlog")}
    times = before.times + sample.times
    return replace(sample, at=begin, oldest_age=max(ages, default=None), times=times, **greatest)


def read_series(
    database: Database, target_ids: Collection[int], resolution: Resolution, *, since: int, before: int, limit: int
) -> list[Sample]:
    """Return the samples of targets from [since, before) (ms), by target and time, at most the first `limit`."""
    s = tables.series.c
    query = (
        sa.select(tables.series)
        .where(s.target_id.in_(target_ids), s.step == resolution.step, s.at >= since, s.at < before)
        .order_by(s.target_id, s.at)
        .limit(limit)
    )
    with database.reading() as connection:
        return [_sample(row) for row in connection.execute(query)]


def newest_samples(connection: sa.Connection, now: int) -> list[Sample]:
    """Return the newest fine sample of every target; none if the last step had none."""
    begin = FINE.begin(now)
    rows = _at(connection, FINE, begin) or _at(connection, FINE, begin - FINE.step * 1000)
    return [_sample(row) for row in rows if row.target_id > REQUESTS]


def pause_before(connection: sa.Connection, sample: Sample) -> int:
    """Return for how long (ms) no samples were taken before a fine one; 0 if it is the first one of its target."""
    s = tables.series.c
    earlier = sa.select(sa.func.max(s.at)).where(s.target_id == sample.target_id, s.step == FINE.step, s.at < sample.at)
    before: int | None = connection.execute(earlier).scalar_one()
    return 0 if before is None else sample.at - before - FINE.step * 1000


def read_merged(
    database: Database, target_id: int, resolution: Resolution, *, width: int, since: int, before: int, limit: int
) -> list[Sample]:
    """Return a target's samples as `read_series` does, those of each `width` seconds merged into one.

    The merged sample has the time of the last one. The database merges the numbers: a month has thousands of samples.
    """
    s = tables.series.c
    group = s.at - s.at % sa.literal_column(str(width * 1000))
    which = (s.target_id == target_id, s.step == resolution.step, s.at >= since, s.at < before)
    greatest = [sa.func.max(s[name]).label(name) for name in ("at", *_TOTALS, "backlog", "oldest_age")]
    numbers = sa.select(group.label("begun"), *greatest).where(*which).group_by(group).order_by(group).limit(limit)
    histograms = sa.select(group.label("begun"), s.times).where(*which, s.times != "")
    with database.reading() as connection:
        rows = connection.execute(numbers).all()
        texts: defaultdict[int, list[str]] = defaultdict(list)
        for begun, text in connection.execute(histograms):
            texts[begun].append(text)
    names = ("at", *_TOTALS, "backlog", "oldest_age")
    return [
        Sample(
            target_id=target_id, times=decode_times(*texts[row.begun]), **{name: getattr(row, name) for name in names}
        )
        for row in rows
    ]


def of_source(row_id: int) -> int:
    """Return what stands in place of a target's id in the samples of a source."""
    return -row_id


def incoming_rates(connection: sa.Connection, ids: Collection[int], now: int) -> dict[int, float]:
    """Return how many events a second came in lately, by what stands in place of a target's id; without the unknown."""
    s = tables.series.c
    query = sa.select(s.target_id, s.at, s.recorded).where(
        s.target_id.in_(ids), s.step == FINE.step, s.at > now - _RECENT_MS, s.at <= now
    )
    samples: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for row in connection.execute(query.order_by(s.at)):
        samples[row.target_id].append((row.at, row.recorded))
    rates = {}
    for counter_id, totals in samples.items():
        newest, total = totals[-1]
        before, earlier = next((at, total) for at, total in totals if at >= newest - _RATE_MS)
        if newest > before:
            rates[counter_id] = max(0, total - earlier) / (newest - before) * 1000
    return rates


def _is_taken(connection: sa.Connection, at: int) -> bool:
    s = tables.series.c
    here = sa.select(s.at).where(s.step == FINE.step, s.slot == FINE.slot(at), s.at == at).limit(1)
    return connection.execute(here).first() is not None


def _measure(connection: sa.Connection, at: int, now: int, seconds: float) -> list[Sample]:
    t, sums = tables.targets.c, cursor_sums()
    columns = [column for column in sums.c if column is not sums.c.target_id]
    query = sa.select(t.id, t.recorded, t.discarded, *columns).join_from(tables.targets, sums, sums.c.target_id == t.id)
    rows = connection.execute(query.order_by(t.id)).all()
    first = at // (FINE.step * 1000) % len(rows) if rows else 0
    until = time.monotonic() + seconds
    samples = []
    for row in [*rows[first:], *rows[:first]]:
        backlog = max(0, row.recorded - int(row.freed))
        age: int | None = 0
        if backlog:
            in_time = time.monotonic() < until
            oldest = oldest_undelivered(connection, [row.id], [row.id]).get(row.id, 0) if in_time else None
            age = max(1, now - oldest) if oldest else oldest
        samples.append(
            Sample(
                target_id=row.id,
                at=at,
                recorded=row.recorded + int(row.replayed),
                delivered=int(row.delivered),
                superseded=int(row.superseded),
                failed=int(row.failed),
                dead_lettered=int(row.dead_lettered),
                discarded=row.discarded,
                backlog=backlog,
                oldest_age=age,
            )
        )
    # All writers of these rows use this order.
    return sorted([*samples, *_incoming(connection, at)], key=lambda sample: sample.target_id)


def _incoming(connection: sa.Connection, at: int) -> list[Sample]:
    s, posted = tables.sources.c, log_head.read_posted(connection)
    totals = [(REQUESTS, posted)] if posted else []
    totals += [(of_source(row.id), row.recorded) for row in connection.execute(sa.select(s.id, s.recorded))]
    return [Sample(counter_id, at, recorded=total) for counter_id, total in totals]


def _at(connection: sa.Connection, resolution: Resolution, at: int) -> Sequence[Any]:
    """Return the rows of the samples that begin at this time."""
    s = tables.series.c
    here = sa.select(tables.series).where(s.step == resolution.step, s.slot == resolution.slot(at), s.at == at)
    return connection.execute(here).all()


def _merge(connection: sa.Connection, resolution: Resolution, at: int, samples: Sequence[Sample]) -> None:
    """Merge samples into those of the step that they belong to; of idle targets there is nothing to change."""
    begin, s = resolution.begin(at), tables.series.c
    _clear(connection, resolution, begin, but=begin)
    before = {row.target_id: row for row in _at(connection, resolution, begin)}
    changed = [
        merged(None if row is None else _sample(row), one, begin)
        for one in samples
        if (row := before.get(one.target_id)) is None or one.times or _NUMBERS(row) != _NUMBERS(one)
    ]
    replaced = before.keys() & {one.target_id for one in changed} | before.keys() - {one.target_id for one in samples}
    place = (s.step == resolution.step, s.slot == resolution.slot(begin))
    for target_ids in chunks(sorted(replaced)):
        connection.execute(tables.series.delete().where(*place, s.target_id.in_(target_ids)))
    _insert(connection, resolution, begin, changed)


def _clear(connection: sa.Connection, resolution: Resolution, at: int, *, but: int = -1) -> None:
    """Free the place of a sample in the ring, except of samples that begin at `but`."""
    s = tables.series.c
    connection.execute(
        tables.series.delete().where(s.step == resolution.step, s.slot == resolution.slot(at), s.at != but)
    )


def _insert(connection: sa.Connection, resolution: Resolution, at: int, samples: Sequence[Sample]) -> None:
    place = resolution.step, resolution.slot(at)
    rows = [(*place, one.target_id, one.at, *_NUMBERS(one), encode_times(one.times)) for one in samples]
    unmeasured = [one.oldest_age is None for one in samples]
    many_rows.insert(connection, tables.series, [row for row, skip in zip(rows, unmeasured, strict=True) if not skip])
    if any(unmeasured):
        names = tables.series.columns.keys()
        some = [dict(zip(names, row, strict=True)) for row, skip in zip(rows, unmeasured, strict=True) if skip]
        connection.execute(tables.series.insert(), some)


def _sample(row: Any) -> Sample:
    return Sample(**{name: getattr(row, name) for name in Sample.__slots__} | {"times": decode_times(row.times)})


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


def encode_times(times: Histogram) -> str:
    """Return the histogram as text of at most 4,000 characters."""
    return " ".join(f"{bound}:{events}" for bound, events in sorted(times.items()))


def decode_times(*texts: str) -> Histogram:
    """Return the sum of what `encode_times` wrote; thousands of histograms are added in half the time at once."""
    numbers = list(map(int, " ".join(texts).replace(":", " ").split()))
    deliveries: dict[int, int] = {}
    for bound, events in zip(numbers[::2], numbers[1::2], strict=True):
        deliveries[bound] = deliveries.get(bound, 0) + events
    return Counter(deliveries)


def report_times(connection: sa.Connection, times: Mapping[int, Histogram]) -> None:
    """Add a worker's histograms, by target."""
    rows = [
        {"target_id": target_id, "times": encode_times(of_one)} for target_id, of_one in sorted(times.items()) if of_one
    ]
    if rows:
        connection.execute(tables.delivery_times.insert(), rows)


def take_reports(connection: sa.Connection) -> Mapping[int, Histogram]:
    """Remove the oldest reports and return their sums by target; a concurrent call waits for this transaction."""
    d = tables.delivery_times.c
    query = sa.select(tables.delivery_times).order_by(d.id).limit(DELIVERY_TIMES.batch_reports).with_for_update()
    rows: Sequence[sa.Row[tuple[int, int, str]]] = connection.execute(query).all()
    sums: defaultdict[int, Histogram] = defaultdict(Counter)
    for row in rows:
        sums[row.target_id].update(decode_times(row.times))
    # By id, and not up to one: a row with a smaller id may be committed later.
    for some in chunks([row.id for row in rows]):
        connection.execute(tables.delivery_times.delete().where(d.id.in_(some)))
    return sums


def _bound(ms: int) -> int:
    return _BOUNDS[min(bisect_left(_BOUNDS, ms), len(_BOUNDS) - 1)]
