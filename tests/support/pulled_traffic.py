"""Events that a frontend writes to a Kafka topic while something is done to the service, which pulls them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

import httpx
import orjson
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests import services
from tests.support.fault_injection import Servers
from tests.support.service_processes import Role, System
from tests.support.traffic import Poster

TOPIC, SOURCE = "chaos", "/v1/sources/kafka/chaos"
LOOK_SECONDS = 10.0  # for recorded messages, before it is counted that there are none yet


@dataclass
class Topic(Poster):
    """One frontend that writes its own objects' events to a topic, and counts them as taken when they are recorded.

    An object's events are in one partition, as MinIO's are. The source's own counter says how many messages were
    recorded, so a message that is counted twice, or none, shows as too early or never.
    """

    repeats: ClassVar[bool] = True
    brokers: str = ""
    _written: int = 0
    _body: bytes = b""
    _producer: Producer = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        options = {"bootstrap.servers": self.brokers, "log_level": 0, "enable.idempotence": True}
        self._producer = Producer({**options, "message.timeout.ms": 600_000})

    def _refusal(self, client: httpx.Client, url: str, content: bytes) -> str:  # type: ignore[override]  # it has a state
        """Write each record of a body to the topic, once; empty when all are recorded."""
        if content is not self._body:
            self._body = content
            for record in orjson.loads(content)["Records"]:
                key = f"{record['s3']['bucket']['name']}/{record['s3']['object']['key']}"
                self._producer.produce(TOPIC, orjson.dumps({"Records": [record]}), key)
                self._written += 1
        self._producer.flush(LOOK_SECONDS)
        deadline = time.monotonic() + LOOK_SECONDS
        while time.monotonic() < deadline:
            if self._recorded(client, url) >= self._written:
                return ""
            time.sleep(0.05)
        return "in the topic"

    @staticmethod
    def _recorded(client: httpx.Client, url: str) -> int:
        """How many messages the source has taken; 0 while nobody can say."""
        try:
            answer = client.get(f"{url}{SOURCE}")
        except httpx.TransportError:
            return 0
        return int(answer.json()["counters"]["messages"]) if answer.status_code == 200 else 0


@contextmanager
def pulled_from(whole: System, servers: Servers) -> Iterator[str]:
    """Run a Kafka and a worker that pulls from a topic in it; yields the address of the former."""
    with services.kafka() as kafka:
        servers.kafka = kafka
        worker = Role(["worker", "--only", "sources"], dict(whole.settings), " ready.")
        servers.source_worker = worker
        whole.ask("PUT", SOURCE, json={"brokers": kafka.brokers, "topic": TOPIC})
        admin = AdminClient({"bootstrap.servers": kafka.brokers, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, num_partitions=3, replication_factor=1)])[TOPIC].result(30)
        worker.start()
        try:
            yield kafka.brokers
        finally:
            worker.stop()
