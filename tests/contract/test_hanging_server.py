"""A server that hangs after it has accepted a connection, or answers byte by byte: put to every target."""

from __future__ import annotations

import time
from contextlib import closing

import pytest

from tests import services
from tests.contract import ways
from tests.contract.probes.base import LIMIT, Probe, attempt
from tests.support import sample_events
from workers.delivery.outcomes import DELIVERED, Delivered, NotAttempted, Unavailable

PAUSE = 1.5  # seconds between two bytes: less than the time limit of one read


@pytest.fixture
def through_proxy(probe: Probe) -> bool:
    """Whether the target stays with the address that it is given: Kafka's brokers name their own."""
    return probe.type != "kafka"


@pytest.mark.nightly(
    "that drip from the middle of an answer on: one read waits for all bytes, with one time limit",
    when=lambda fault: fault == "drips",
)
@ways.connecting
@pytest.mark.parametrize("fault", ["hangs", "drips"])
def test_opening_ends_in_time_when_the_server(probe: Probe, fault: str) -> None:
    with services.proxy(probe.port) as proxy:
        if fault == "hangs":
            proxy.swallow()
        else:
            proxy.drip(PAUSE)
        with closing(probe.target(probe.at_port(proxy.port))) as target:
            began = time.monotonic()
            (outcome,) = attempt(target, [sample_events.put("a")], 1)
            took = time.monotonic() - began
    assert took < LIMIT
    assert isinstance(outcome, Unavailable), outcome


@pytest.mark.nightly(
    "that drip from the middle of an answer on; a frozen server, which sends nothing either",
    when=lambda fault: fault in {"drips", "hangs"},
)
@ways.confirming
@pytest.mark.parametrize("fault", ["hangs", "drips", "drips in the middle"])
def test_a_delivery_ends_in_time_when_the_server(probe: Probe, through_proxy: bool, fault: str) -> None:
    if not through_proxy:
        pytest.skip("its brokers name their own addresses")
    with services.proxy(probe.port) as proxy, closing(probe.target(probe.at_port(proxy.port))) as target:
        assert list(target.deliver([sample_events.put("before")], 1)) == [DELIVERED]
        if fault == "hangs":
            proxy.mute()
        else:
            proxy.drip(PAUSE, after=0 if fault == "drips" else 3)
        began = time.monotonic()
        outcomes = attempt(target, [sample_events.put("a"), sample_events.put("a"), sample_events.put("b")], 1)
        took = time.monotonic() - began
    assert took < 2 * LIMIT
    # Three of Redis' four bytes at once: the rest comes in time.
    assert all(isinstance(outcome, Unavailable | NotAttempted | Delivered) for outcome in outcomes)
    assert outcomes[-1] != DELIVERED or fault == "drips in the middle"


@ways.connecting
def test_a_server_that_answers_late_but_in_time_is_not_cut(probe: Probe, through_proxy: bool) -> None:
    if not through_proxy:
        pytest.skip("its brokers name their own addresses")
    with services.proxy(probe.port) as proxy, probe.opened(probe.at_port(proxy.port), timeout="6s") as target:
        proxy.slow(0.5)
        assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]
