"""The task broker, where nothing listens."""

from __future__ import annotations

import contextlib

import pytest

from app.broker import Broker, BrokerUnavailable
from tests import services


@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_a_broker_that_is_down_is_found_out_without_a_pause(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """kombu would sleep between its two tries, for two seconds of each command that changes something."""
    slept: list[float] = []
    monkeypatch.setattr("kombu.utils.functional.sleep", slept.append)
    url = f"{scheme}://{services.LOOPBACK}:{services.free_port()}/"
    with contextlib.closing(Broker(url)) as broker, pytest.raises(BrokerUnavailable, match="refused"):
        broker.length("bucketwire")
    assert sum(slept) == 0
