"""Limits of waits grow with what the machine took at the start, and a wait that is fulfilled takes no longer."""

from __future__ import annotations

import os
import time

import pytest

from tests import services
from tests.conftest import lengthen
from tests.services import speed


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    speed.slowness.cache_clear()
    monkeypatch.delenv("TEST_SLOWNESS", raising=False)


@pytest.fixture(autouse=True)
def forgotten() -> object:
    yield
    speed.slowness.cache_clear()


@pytest.mark.parametrize(("said", "factor"), [("0.5", 1), ("2.5", 2.5), ("70", 10)])
def test_a_slow_machine_waits_longer_within_bounds(monkeypatch: pytest.MonkeyPatch, said: str, factor: float) -> None:
    monkeypatch.setenv("TEST_SLOWNESS", said)
    assert speed.slowness() == factor
    began = time.monotonic()
    with pytest.raises(AssertionError, match=f"not within {0.1 * factor:g} s: rain"):
        services.until(lambda: False, 0.1, what="rain")
    assert time.monotonic() - began >= 0.1 * factor


@pytest.mark.timeout(100)
def test_a_test_has_longer_on_a_slow_machine(request: pytest.FixtureRequest) -> None:
    def limit() -> float:
        marker = request.node.get_closest_marker("timeout")
        assert marker is not None
        return float(marker.args[0])

    before = limit()
    assert before >= 100  # more, if this run began on a busy machine
    assert isinstance(request.node, pytest.Item)
    lengthen([request.node], 300, 2.5)
    assert limit() == before * 2.5


def test_it_is_measured_once_and_handed_on() -> None:
    assert speed.slowness() == 1  # nothing was measured
    speed.measure()
    first = os.environ["TEST_SLOWNESS"]
    assert float(first) > 0
    speed.measure()
    assert os.environ["TEST_SLOWNESS"] == first


def test_a_run_of_hours_measures_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_SLOWNESS", "9.9")
    assert speed.slowness() == 9.9
    monkeypatch.setattr(speed, "_STEPS", 1)
    speed.measure_again()
    assert speed.slowness() == 1
