"""A stream of RabbitMQ, filled by pika."""

from __future__ import annotations

from tests.contract.probes.amqp import QUEUE
from tests.contract.source_probes import amqp


class Stream(amqp.Queue):
    """A stream, which has one order, and whose position the outbox has."""

    keeps_positions = True

    def renew(self) -> None:
        super().renew()
        with self.target.channel() as channel:
            channel.queue_delete(QUEUE)
            channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "stream"})


PROBE = Stream
