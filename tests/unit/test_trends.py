"""What `make soak` takes for growth, and what not."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from tests.soak.sampling import KIB, LIMITS
from tests.soak.trends import Limit, Sample, envelope, judged, trend, warm_up

HOUR = 3600
EVERY = 5


def series(value: Callable[[float], float], *, seconds: float = HOUR) -> list[Sample]:
    return [(at, value(at)) for at in range(0, int(seconds), EVERY)]


def noise(size: float) -> Callable[[float], float]:
    rng = Random(1)
    return lambda _: rng.uniform(-size, size)


def test_a_straight_line_has_its_slope_and_its_drift() -> None:
    found = trend(series(lambda at: 100 + 2 * at), Limit(1000))
    assert (found.slope, found.steady) == (pytest.approx(2), True)
    assert found.drift == pytest.approx(2 * (HOUR - EVERY))
    assert found.grows


def test_what_stays_or_falls_does_not_grow() -> None:
    assert not trend(series(lambda _: 7), Limit(0)).grows
    assert not trend(series(lambda at: 10_000 - at), Limit(0)).grows
    wobble = noise(50)
    assert not trend(series(lambda at: 1000 + wobble(at)), Limit(20)).grows


def test_a_leak_of_1_kib_in_1000_events_shows_in_the_default_run_among_noise() -> None:
    wobble, rate = noise(400 * KIB), 500
    leaking = series(lambda at: 80_000 * KIB + at * rate / 1000 * KIB + wobble(at))
    assert trend(judged(leaking), LIMITS["memory"]).grows
    wobble = noise(400 * KIB)
    sound = series(lambda at: 80_000 * KIB + wobble(at))
    assert not trend(judged(sound), LIMITS["memory"]).grows


def test_neither_outliers_nor_one_step_are_a_trend() -> None:
    wobble = noise(5)
    outliers = series(lambda at: 1000 + wobble(at) + (1e6 if at % 500 == 0 else 0))
    steps = [series(lambda at, s=s: 1000 + wobble(at) + (300 if at > HOUR * s else 0)) for s in (0.4, 0.5, 0.7)]
    for samples in (outliers, *steps):
        assert not trend(samples, Limit(150)).grows


def test_a_saw_is_a_trend_only_when_its_peaks_rise() -> None:
    def saw(slope: float) -> list[Sample]:  # filled for ten minutes, purged at once
        return judged(envelope(series(lambda at: 1000 + at % 600 + slope * at), 600))

    assert trend(saw(0), Limit(1)).drift == 0
    assert trend(saw(0.5), Limit(150)).grows


def test_a_limit_may_be_a_share_of_what_is_usual() -> None:
    rising = series(lambda at: 1000 + at / 36)  # 10 % in the hour
    assert trend(rising, Limit(0, 0.05)).grows
    assert not trend(rising, Limit(0, 0.2)).grows


def test_the_warm_up_is_not_judged() -> None:
    warming = series(lambda at: min(at, HOUR / 3))
    assert judged(warming)[0][0] == pytest.approx(HOUR / 3, abs=EVERY)
    assert not trend(judged(warming), Limit(1)).grows
    assert trend(warming, Limit(1)).drift > 1
    assert judged([]) == []
    assert [warm_up(60 * minutes) for minutes in (4, 10, 12, 60)] == [120, 300, 300, 1200]


def test_a_few_samples_are_no_series() -> None:
    with pytest.raises(ValueError, match="9 samples are too few"):
        trend([(at, 0) for at in range(9)], Limit(0))
