"""No driver connects to a link-local address while a target of a limited token is called, whatever names it."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from kafka.errors import KafkaError

from app.config.declared_types import TYPES
from app.config.target_settings import load
from workers.systems.kafka.client import Client
from workers.targets import create, tcp
from workers.targets.base import TargetUnavailable

HOST = "metadata.test"
AT: dict[str, list[dict[str, str]]] = {
    "amqp": [{"url": f"amqp://{HOST}:5672", "routing_key": "q", "exchange": "e"}],
    "elasticsearch": [{"url": f"http://{HOST}:9200", "index": "i"}],
    "kafka": [{"brokers": f"{HOST}:9092", "topic": "t"}],
    "mqtt": [{"broker": f"tcp://{HOST}:1883", "topic": "t"}, {"broker": f"ws://{HOST}:1883", "topic": "t"}],
    "mysql": [{"dsn_string": f"u:p@tcp({HOST}:3306)/d", "table": "t"}],
    "nats": [
        {"address": f"{HOST}:4222", "subject": "s"},
        {"address": f"{HOST}:4222", "subject": "s", "jetstream": "on"},
    ],
    "nsq": [{"nsqd_address": f"{HOST}:4150", "topic": "t"}],
    "postgresql": [
        {"connection_string": f"host={HOST} user=u dbname=d", "table": "t"},
        {"connection_string": f"postgresql://u@{HOST},{HOST}:5433/d", "table": "t"},
    ],
    "redis": [{"address": f"{HOST}:6379", "key": "k"}],
    "sqs": [{"queue_url": f"http://{HOST}:9324/000000000000/q", "region": "r", "access_key": "a", "secret_key": "s"}],
    "webhook": [{"endpoint": f"http://{HOST}:8080/", "allow_private": "on"}],
}
ADDRESSES = ["169.254.169.254", "fe80::1", "::ffff:169.254.0.1"]
CASES = [(kind, values) for kind, several in AT.items() for values in several]


def test_every_type_is_tried() -> None:
    assert AT.keys() == TYPES.keys()


@pytest.mark.parametrize(("kind", "values"), CASES, ids=[kind for kind, _ in CASES])
@pytest.mark.parametrize("address", ADDRESSES)
def test_a_name_that_is_link_local_is_not_connected_to(
    monkeypatch: pytest.MonkeyPatch, kind: str, values: dict[str, str], address: str
) -> None:
    real = socket.getaddrinfo

    def resolved(host: Any, *arguments: Any, **options: Any) -> Any:
        return real(address if host == HOST else host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    target = create(kind, load(kind, values | {"timeout": "2s"}))
    try:
        with tcp.refusing_link_local(when=True), pytest.raises(TargetUnavailable) as refused:
            target.open()
    finally:
        target.close()
    assert "is link-local" in refused.value.reason


def test_others_are_connected_to_and_the_refusal_ends_with_the_block() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        with tcp.refusing_link_local(when=True):
            assert tcp.refuses_link_local()
            socket.create_connection(listening.getsockname()).close()
            for host in ("169.254.1.1", "0xa9fe0101"):
                with pytest.raises(tcp.LinkLocalAddress), socket.socket() as opened:
                    opened.connect((host, 80))
        assert not tcp.refuses_link_local()
        with tcp.refusing_link_local(when=False):
            assert not tcp.refuses_link_local()


def test_a_kafka_producer_whose_thread_connects_between_two_calls_is_refused_too() -> None:
    """A cluster advertises addresses as it likes, and the library reads them again every few minutes."""
    with tcp.refusing_link_local(when=True):
        client = Client(level=1, patience=2, bootstrap_servers=["169.254.1.1:9"])
    try:
        with pytest.raises(KafkaError, match="link-local"):
            client.begin()
    finally:
        client.close()
