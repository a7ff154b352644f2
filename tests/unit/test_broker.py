"""The task broker, where nothing listens."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest

from app import broker as task_broker
from app.broker import Broker, BrokerUnavailable
from tests import services
from tests.support.rogue_server import RogueServer


class Trickling(RogueServer):
    """A Redis whose answer has no end: it sends a byte more often than a read of its client may take."""

    def __init__(self) -> None:
        self.ends = threading.Event()
        super().__init__()

    def talk(self, client: socket.socket) -> None:
        client.sendall(b"-")
        while not self.ends.wait(0.1):
            client.sendall(b"E")


@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_a_broker_that_is_down_is_found_out_without_a_pause(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """kombu would sleep between its two tries, for two seconds of each command that changes something."""
    slept: list[float] = []
    monkeypatch.setattr("kombu.utils.functional.sleep", slept.append)
    url = f"{scheme}://{services.LOOPBACK}:{services.free_port()}/"
    with contextlib.closing(Broker(url)) as broker, pytest.raises(BrokerUnavailable, match="refused"):
        broker.length("bucketwire")
    assert sum(slept) == 0


def test_a_redis_whose_answer_trickles_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    options = task_broker._REDIS | {"socket_timeout": 0.5, "socket_connect_timeout": 0.5}
    monkeypatch.setattr(task_broker, "_REDIS", options)
    server = Trickling()
    try:
        with (
            contextlib.closing(Broker(f"redis://{services.LOOPBACK}:{server.port}/")) as broker,
            pytest.raises(BrokerUnavailable),
        ):
            broker.length("bucketwire")
    finally:
        server.ends.set()
        server.close()
