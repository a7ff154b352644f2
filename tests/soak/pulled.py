"""The soak's events by a source: written to a Kafka topic, from which a worker pulls them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import orjson
from confluent_kafka import Producer

from tests import services
from tests.services import until
from tests.support.pulled_traffic import topic_producer
from tests.support.service_processes import Role, System, source_worker
from tests.support.target_readers import Record

TOPIC, SOURCE = "soak", "/v1/sources/kafka/soak"
FLUSH_SECONDS = 600.0  # that Kafka may take on a busy machine


@dataclass
class Topic:
    """A topic, how much was written to it, and the worker that pulls from it."""

    whole: System
    producer: Producer
    worker: Role
    written: int = 0

    def write(self, records: Sequence[Record]) -> None:
        """Write a message for each record, those of an object to one partition, and return when Kafka has them."""
        for record in records:
            key = f"{record['s3']['bucket']['name']}/{record['s3']['object']['key']}"
            self.producer.produce(TOPIC, orjson.dumps({"Records": [record]}), key)
        left = self.producer.flush(FLUSH_SECONDS)
        assert not left, f"Kafka has not taken {left} messages within {FLUSH_SECONDS:g} s"
        self.written += len(records)

    def counters(self) -> dict[str, int]:
        """What the source says that it has taken."""
        counters: dict[str, int] = self.whole.ask("GET", SOURCE).json()["counters"]
        return counters

    def mismatch(self, seconds: float) -> str:
        """Empty when every message is recorded within so many seconds, each once, and none is rejected."""
        try:
            until(lambda: self.counters()["messages"] >= self.written, seconds, what="every message recorded")
        except AssertionError as error:
            return f"{error}: {self.counters()}"
        counters = self.counters()
        expected = {"messages": self.written, "recorded": self.written, "repeated": 0, "rejected": 0}
        wrong = {name: counters[name] for name, count in expected.items() if counters[name] != count}
        return f"the source's counters are {wrong} of {self.written} messages" if wrong else ""


@contextmanager
def topic(whole: System) -> Iterator[Topic]:
    """Run a Kafka and a worker that pulls from a topic in it."""
    with services.kafka() as kafka:
        producer = topic_producer(kafka, TOPIC)
        whole.ask("PUT", SOURCE, json={"brokers": kafka.brokers, "topic": TOPIC})
        worker = source_worker(whole.settings)
        worker.start()
        try:
            yield Topic(whole, producer, worker)
        finally:
            worker.stop()
