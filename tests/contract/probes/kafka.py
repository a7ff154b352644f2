"""Kafka, written through kafka-python and read back by librdkafka."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from app.events.model import Event
from tests import services
from tests.contract.probes.base import Probe
from tests.support import sample_events
from workers.targets import payloads

PARTITIONS = 6
_LATER = (
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
)


class Log(Probe):
    """A message for each event, on a topic of six partitions."""

    type = "kafka"
    shared_server = staticmethod(services.kafka)
    can_reject = True
    _topics = itertools.count(1)

    def __init__(self, server: services.Kafka | None = None) -> None:
        self.server: services.Kafka = server or services.kafka()
        self.topic = ""

    def values(self) -> dict[str, str]:
        return {"brokers": self.server.brokers, "topic": self.topic}

    def at_port(self, port: int) -> dict[str, str]:
        return self.values() | {"brokers": f"{services.LOOPBACK}:{port}"}

    def as_stranger(self) -> dict[str, str]:
        return self.by_sasl("plain") | {"sasl_password": "wrong-s3cret"}

    def by_sasl(self, mechanism: str) -> dict[str, str]:
        """Settings that log in."""
        login = {"sasl_username": services.USER, "sasl_password": services.PASSWORD, "sasl_mechanism": mechanism}
        return self.at_port(self.server.sasl_port) | {"sasl": "on"} | login

    def by_tls(self, ca: Path) -> dict[str, str]:
        return self.at_port(self.server.tls_port) | {"tls": "on", "tls_ca": str(ca)}

    def renew(self) -> None:
        if not self.server.running:
            self.server.stop()
            self.server.start()
        # A fresh topic instead of an emptied one: Kafka deletes in the background.
        self.topic = f"events-{next(self._topics)}"
        self.create_topic(self.topic, PARTITIONS)

    def create_topic(self, name: str, partitions: int, **config: str) -> None:
        """A topic, ready for use. A broker that was short of the processor is fenced for a moment, and makes none."""
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config)
        admin = self.admin()  # kept until it has answered

        def made() -> bool:
            try:
                admin.create_topics([topic], operation_timeout=10, request_timeout=10)[name].result(20)
            except KafkaException as error:
                code = error.args[0].code()
                if code not in (*_LATER, KafkaError.TOPIC_ALREADY_EXISTS):
                    raise
                return code not in _LATER
            except TimeoutError:
                return False
            return True

        services.until(made, 60, what=f"the topic {name}")
        services.until(lambda: len(self.leaders(name)) == partitions, what=f"leaders of {name}")

    def admin(self) -> AdminClient:
        """An administrator, by librdkafka."""
        return AdminClient({"bootstrap.servers": self.server.brokers, "log_level": 0})

    def leaders(self, name: str) -> dict[int, int]:
        """The leader of each partition that has one."""
        found = self.admin().list_topics(topic=name, timeout=10).topics[name]
        return {number: each.leader for number, each in found.partitions.items() if each.leader >= 0}

    def messages(self, topic: str = "") -> list[Any]:
        """All messages of a topic, partition by partition, in order."""
        name = topic or self.topic
        consumer = Consumer(
            {
                "bootstrap.servers": self.server.brokers,
                "group.id": "reader",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 10,
                "log_level": 0,
            }
        )
        try:
            found = consumer.list_topics(topic=name, timeout=10).topics[name]
            if found.error is not None:
                return []
            places = [TopicPartition(name, number, 0) for number in found.partitions]
            ends = {place.partition: consumer.get_watermark_offsets(place, timeout=10)[1] for place in places}
            return _read(consumer, places, ends)
        except KafkaException:
            return []  # the broker is down or on its way
        finally:
            consumer.close()

    def held(self) -> list[tuple[str, str]]:
        return [(message.key().decode(), message.value().decode()) for message in self.messages()]

    def expected(self, event: Event) -> str:
        return payloads.log(event)

    def poison(self, key: str) -> Event:
        # A broker takes up to 1,048,588 bytes.
        return sample_events.put(key, metadata="x" * 1_200_000)


def _read(consumer: Any, places: Sequence[TopicPartition], ends: dict[int, int]) -> list[Any]:
    """Up to the end of each partition, sorted by partition and offset."""
    found: list[Any] = []
    missing = {number for number, end in ends.items() if end}
    consumer.assign([place for place in places if place.partition in missing])
    while missing:
        message = consumer.poll(10)
        assert message is not None, f"{len(found)} messages, and then none of {missing} before {ends}"
        assert message.error() is None, message.error()
        found.append(message)
        if message.offset() >= ends[message.partition()] - 1:
            missing.discard(message.partition())
    return sorted(found, key=lambda message: (message.partition(), message.offset()))


WAYS = {"kafka": Log}
