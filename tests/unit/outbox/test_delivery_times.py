"""Histograms of delivery times: honest percentiles, sums, and a bounded text."""

from __future__ import annotations

from collections import Counter
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.outbox.series import decode_times, encode_times, histogram, percentile

NOW = 1_795_000_000_000
MS = st.integers(0, 40 * 86_400_000)


def of(*times: int) -> Counter[int]:
    return histogram([NOW - time for time in times], NOW)


@given(st.lists(MS, min_size=1, max_size=50), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_percentile_is_never_below_the_truth_and_at_most_19_percent_above(times: list[int], share: float) -> None:
    found = percentile(of(*times), share)
    truth = sorted(times)[ceil(share * len(times)) - 1]
    assert found is not None
    assert truth <= found <= max(1, ceil(truth * 2**0.25))


@given(st.lists(MS), st.lists(MS))
def test_the_sum_of_two_is_that_of_all_times_and_texts_keep_them(one: list[int], other: list[int]) -> None:
    assert decode_times(encode_times(of(*one))) + decode_times(encode_times(of(*other))) == of(*one, *other)
    assert decode_times(encode_times(of(*one)), "", encode_times(of(*other))) == of(*one, *other)


def test_without_deliveries_there_is_no_percentile() -> None:
    assert percentile(Counter(), 0.5) is None
    assert decode_times(encode_times(Counter())) == Counter()


@pytest.mark.parametrize(("time", "shown"), [(-5_000, 1), (10**15, 2**32)])
def test_times_of_wrong_clocks_stay_in_bounds(time: int, shown: int) -> None:
    assert percentile(of(time), 0.5) == shown


def test_the_text_is_bounded() -> None:
    every = Counter({bound: 10**12 for time in range(200) for bound in of(round(1.2**time))})
    assert len(encode_times(every)) < 4_000
