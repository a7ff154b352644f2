"""RabbitMQ, read back by pika."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pika
from pika.adapters.blocking_connection import BlockingChannel

from app.events import own_events
from app.events.model import Event
from tests import services
from tests.contract.probes.base import Probe, path_of
from tests.support import sample_events
from workers.targets import payloads

QUEUE = "bucketevents"
ROUTED = sorted(
    {event.name for _, event in sample_events.captured()}
    | {sample_events.PUT, sample_events.DELETE, "s3:ObjectAccessed:Head", own_events.TEST_EVENT}
)


class Queue(Probe):
    """A durable queue, published to by its name."""

    type = "amqp"
    shared_server = staticmethod(services.rabbitmq)
    settles = 2.5  # RabbitMQ's log of what was declared is written with a delay of up to two seconds

    def __init__(self, server: services.RabbitMQ | None = None) -> None:
        self.server: services.RabbitMQ = server or services.rabbitmq()

    def values(self) -> dict[str, str]:
        return {"url": self.server.url, "routing_key": QUEUE, "delivery_mode": "2"}

    def at_port(self, port: int) -> dict[str, str]:
        return self.values() | {"url": self.server.url.replace(f":{self.server.port}/", f":{port}/")}

    def as_stranger(self) -> dict[str, str]:
        return self.values() | {"url": self.server.url.replace(f":{services.PASSWORD}@", ":wrong-s3cret@")}

    def by_tls(self, ca: Path) -> dict[str, str]:
        return self.values() | {"url": self.server.tls_url, "tls_ca": str(ca)}

    def renew(self) -> None:
        if not self.server.running:
            self.server.stop()
            self.server.start()
        with self.channel() as channel:
            channel.queue_delete(QUEUE)
            channel.queue_declare(QUEUE, durable=True)
            self.bind(channel)

    def bind(self, channel: BlockingChannel) -> None:
        """What leads to the queue."""

    def held(self) -> list[tuple[str, str]]:
        return [(path_of(body), body.decode()) for _, body in self.messages()]

    def messages(self) -> list[tuple[pika.BasicProperties, bytes]]:
        """The queue's messages, which stay there."""
        found: list[tuple[pika.BasicProperties, bytes]] = []
        with self.channel() as channel:

            def ready() -> int:
                return int(channel.queue_declare(QUEUE, passive=True).method.message_count)

            # As many as there are now: one who writes all the while must not keep us here.
            for _ in range(ready()):
                _, properties, body = channel.basic_get(QUEUE)
                found.append((properties, body))
            channel.basic_nack(0, multiple=True, requeue=True)
            # RabbitMQ puts them back in its own time, and who looks before sees fewer.
            services.until(lambda: ready() >= len(found), 60, what="the messages are back in their queue")
        return found

    def expected(self, event: Event) -> str:
        return payloads.log(event)

    @contextmanager
    def channel(self) -> Iterator[BlockingChannel]:
        """A channel of our own."""
        connection = pika.BlockingConnection(pika.URLParameters(self.server.url.removesuffix("//") + "/%2F"))
        try:
            yield connection.channel()
        finally:
            if connection.is_open:
                connection.close()


class Headers(Queue):
    """An exchange that routes by the headers of a message, and a target that minds what is not routed."""

    can_reject = True

    def values(self) -> dict[str, str]:
        return super().values() | {
            "exchange": "minio",
            "exchange_type": "headers",
            "durable": "on",
            "mandatory": "on",
            "routing_key": "",
        }

    def bind(self, channel: BlockingChannel) -> None:
        channel.exchange_delete("minio")
        channel.exchange_declare("minio", "headers", durable=True)
        for name in ROUTED:
            channel.queue_bind(QUEUE, "minio", arguments={"x-match": "all", "minio-event": name})

    def poison(self, key: str) -> Event:
        return sample_events.put(key)._replace(name="s3:Poison:*")


WAYS = {"amqp-queue": Queue, "amqp-headers": Headers}
