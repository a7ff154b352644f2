"""The task broker, where nothing listens."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

import pytest

from app import broker as task_broker
from app import socket_watchdog
from app.broker import Broker, BrokerUnavailable
from app.config.settings import Settings
from app.supervisor import embedded_redis
from tests import services
from tests.support.rogue_server import RogueServer


class Trickling(RogueServer):
    """A Redis whose answer has no end: it sends a byte more often than a read of its client may take."""

    def __init__(self, file: Path | None = None) -> None:
        self.ends = threading.Event()
        super().__init__(file)

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


@pytest.mark.parametrize("is_file", [False, True])
def test_a_redis_whose_answer_trickles_is_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_file: bool
) -> None:
    options = task_broker._REDIS | {"socket_timeout": 0.5, "socket_connect_timeout": 0.5}
    monkeypatch.setattr(task_broker, "_REDIS", options)
    file = tmp_path / "redis.sock"
    server = Trickling(file if is_file else None)
    url = f"redis+socket://{file}" if is_file else f"redis://{services.LOOPBACK}:{server.port}/"
    try:
        with contextlib.closing(Broker(url)) as broker, pytest.raises(BrokerUnavailable):
            broker.length("bucketwire")
    finally:
        server.ends.set()
        server.close()


def test_an_embedded_redis_whose_answer_trickles_is_given_up(tmp_path: Path) -> None:
    settings = Settings.from_environ({"BUCKETWIRE_DATA_DIR": str(tmp_path)})
    server = Trickling(settings.broker_socket)
    try:
        assert not embedded_redis.answers(settings)
        with pytest.raises(embedded_redis.RedisNotResponding):
            embedded_redis.sample(settings, 10)
    finally:
        server.ends.set()
        server.close()


def test_a_redis_that_says_nothing_is_given_up_for_that_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    options = task_broker._REDIS | {"socket_timeout": 0.3, "socket_connect_timeout": 0.3}
    monkeypatch.setattr(task_broker, "_REDIS", options)
    with socket.create_server((services.LOOPBACK, 0)) as silent:
        url = f"redis://{services.LOOPBACK}:{silent.getsockname()[1]}/"
        for _ in range(3):  # two limits that end at once would each be first now and then
            with contextlib.closing(Broker(url)) as broker, pytest.raises(BrokerUnavailable, match="Timeout reading"):
                broker.length("bucketwire")


def test_a_late_cut_spares_the_connection_that_has_got_the_descriptor() -> None:
    """redis-py has closed its own by then."""
    mine, other_end = socket.socketpair()
    answer, number = socket_watchdog.LimitedSocket(mine, 0), mine.fileno()
    mine.close()
    left, right = socket.socketpair()
    with contextlib.closing(left), contextlib.closing(right), contextlib.closing(other_end):
        assert number in (left.fileno(), right.fileno())
        answer.cut()
        left.sendall(b"x")
        assert right.recv(1) == b"x"
