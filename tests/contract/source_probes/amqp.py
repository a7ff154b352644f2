"""RabbitMQ, filled by pika."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pika

from tests import services
from tests.contract.probes import amqp
from tests.contract.source_probes.base import SourceProbe


class Queue(SourceProbe):
    """A durable queue, which is one share."""

    type = "amqp"

    def __init__(self) -> None:
        self.target = amqp.Queue()
        self.server: services.RabbitMQ = self.target.server

    def renew(self) -> None:
        self.target.renew()

    def values(self) -> Mapping[str, Any]:
        return {"url": self.server.url, "queue": amqp.QUEUE}

    def send(self, bodies: Sequence[bytes], share: int = 0) -> None:
        with self.target.channel() as channel:
            channel.confirm_delivery()
            for body in bodies:
                channel.basic_publish("", amqp.QUEUE, body, pika.BasicProperties(delivery_mode=2), mandatory=True)


PROBE = Queue
