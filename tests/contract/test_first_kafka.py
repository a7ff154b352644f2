"""Kafka 0.9, the older one of those that MinIO's guides name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count

import pytest

from app.config.target_settings import load
from tests import services
from tests.contract.probes.base import attempt
from tests.support import sample_events
from workers.delivery.outcomes import DELIVERED
from workers.targets import create, payloads
from workers.targets.base import Target

pytestmark = pytest.mark.nightly("Kafka 4, also by the protocols 0.11 and 2.1")

_topics = count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[services.FirstKafka]:
    with ExitStack() as stack:
        zookeeper = stack.enter_context(services.ZooKeeper().start())
        yield stack.enter_context(services.FirstKafka(zookeeper).start())


def opened(server: services.FirstKafka, topic: str, **settings: str) -> Target:
    values = {"brokers": server.brokers, "topic": topic, "version": "0.9.0.1", "timeout": "5s"}
    return create("kafka", load("kafka", values | settings))


@pytest.mark.parametrize("window", [1, 100])
def test_it_takes_events_in_order(server: services.FirstKafka, window: int) -> None:
    topic = f"events-{next(_topics)}"
    target = opened(server, topic)
    first = sample_events.put("a")
    services.until(lambda: attempt(target, [first], 1) == [DELIVERED], 60, what="the topic that it makes")
    batch = [sample_events.put(f"object-{number % 5}") for number in range(50)]
    assert attempt(target, batch, window) == [DELIVERED] * 50
    target.close()
    written = server.written(topic)
    for path in {event.path for event in batch}:
        places = [written.index(payloads.log(event).encode()) for event in batch if event.path == path]
        assert places == sorted(places)


def test_it_takes_compressed_batches(server: services.FirstKafka) -> None:
    target = opened(server, f"events-{next(_topics)}", compression_codec="gzip")
    batch = [sample_events.put(f"object-{number % 5}") for number in range(50)]
    services.until(lambda: attempt(target, batch, 100) == [DELIVERED] * 50, 60, what="the topic that it makes")
    target.close()
