"""A stream of RabbitMQ, filled by pika."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from pika.exceptions import ChannelClosedByBroker

from tests.contract.probes.amqp import QUEUE
from tests.contract.source_probes import amqp
from tests.services import until


class Stream(amqp.Queue):
    """A stream, which has one order, and whose position the outbox has."""

    keeps_positions = True

    def renew(self) -> None:
        super().renew()
        with self.target.channel() as channel:
            channel.queue_delete(QUEUE)
            channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "stream"})

    def send(self, bodies: Sequence[bytes], share: int = 0) -> None:
        """Send when the stream is there: for half a second after its server it is not, and messages are dropped."""
        until(self._is_there, 30, what="the stream")
        super().send(bodies, share)

    def _is_there(self) -> bool:
        with self.target.channel() as channel, suppress(ChannelClosedByBroker):
            channel.queue_declare(QUEUE, passive=True)
            return True
        return False


PROBE = Stream
