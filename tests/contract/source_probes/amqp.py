"""RabbitMQ, filled by pika."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pika

from tests import services
from tests.contract.probes import amqp
from tests.contract.source_probes.base import SourceProbe

HEARTBEAT_SECONDS = 2


class Queue(SourceProbe):
    """A durable queue, which is one share."""

    type = "amqp"
    way = amqp.Queue
    target: amqp.Queue
    server: services.RabbitMQ

    def values(self) -> Mapping[str, Any]:
        return {"url": self.server.url, "queue": amqp.QUEUE}

    def impatient(self) -> Mapping[str, Any]:
        # With heartbeats of 10 s, as usual, the server gives the queue back after half a minute.
        return {**self.values(), "url": f"{self.server.url}?heartbeat={HEARTBEAT_SECONDS}"}

    def send(self, bodies: Sequence[bytes], share: int = 0) -> None:
        with self.target.channel() as channel:
            channel.tx_select()  # all at once: a source is faster than a sender that waits for each confirmation
            for body in bodies:
                channel.basic_publish("", amqp.QUEUE, body, pika.BasicProperties(delivery_mode=2))
            channel.tx_commit()


PROBE = Queue
