"""Kafka, filled through librdkafka."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import Producer

from tests import services
from tests.contract.probes import kafka
from tests.contract.source_probes.base import SourceProbe


class Topic(SourceProbe):
    """A topic of six partitions, each of which is a share."""

    type = "kafka"
    way = kafka.Log
    target: kafka.Log
    server: services.Kafka
    keeps_positions = True

    def values(self) -> Mapping[str, Any]:
        return self.target.values()

    def send(self, bodies: Sequence[bytes], share: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.server.brokers, "acks": "all", "linger.ms": 5, "log_level": 0})
        errors: list[Any] = []
        for body in bodies:
            while True:
                try:
                    producer.produce(
                        self.target.topic, body, partition=share, on_delivery=lambda error, _: errors.append(error)
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(60) == 0
        assert not any(errors), errors


PROBE = Topic
