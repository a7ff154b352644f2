"""SQS on ElasticMQ, whose queues are emptied by the server's own requests."""

from __future__ import annotations

import contextlib
import http.client
import itertools
from pathlib import Path
from typing import Any, ClassVar, Self

from app.events.model import Event
from tests import services
from tests.contract.probes.base import Probe, path_of
from tests.services.elasticmq import ElasticMq, Gateway
from tests.support import sample_events
from workers.targets import payloads


class Read(ElasticMq):
    """A server whose messages are taken from the queue when they are looked at, and kept here."""

    queue: str = "bucketevents"

    def start(self) -> Self:
        super().start()
        self.taken: list[dict[str, Any]] = getattr(self, "taken", [])
        self.url_of_queue = self.create(self.queue)
        return self

    def messages(self) -> list[dict[str, Any]]:
        """All that was sent, in the order in which the queue gave it."""
        with contextlib.suppress(OSError, http.client.HTTPException):  # killed while we asked
            left = self._waiting()  # as many as there are now: one who writes all the while must not keep us here
            while left > 0 and (found := self._receive()):
                left -= len(found)
                self.taken += found
                entries = [{"Id": str(n), "ReceiptHandle": each["ReceiptHandle"]} for n, each in enumerate(found)]
                self.ask("DeleteMessageBatch", QueueUrl=self.url_of_queue, Entries=entries)
        return self.taken

    def _waiting(self) -> int:
        name = "ApproximateNumberOfMessages"
        if not self.running:
            return 0
        return int(
            self.ask("GetQueueAttributes", QueueUrl=self.url_of_queue, AttributeNames=[name])["Attributes"][name]
        )

    def _receive(self) -> list[dict[str, Any]]:
        answer = self.ask(
            "ReceiveMessage", QueueUrl=self.url_of_queue, MaxNumberOfMessages=10,
            MessageAttributeNames=["All"], AttributeNames=["All"],
        )  # fmt: skip
        return list(answer.get("Messages", ()))


def read() -> Read:
    """A running server of its own."""
    return Read().start()


class Standard(Probe):
    """A message for each event, in a standard queue."""

    type = "sqs"
    shared_server = staticmethod(read)
    can_reject = True
    keeps = False
    queue: ClassVar[str] = "bucketevents"
    _queues = itertools.count(1)

    def __init__(self, server: Read | None = None) -> None:
        self.server: Read = server or read()
        self._gateways: list[Gateway] = []

    def values(self) -> dict[str, str]:
        return {
            "queue_url": self.server.url_of_queue,
            "access_key": services.USER,
            "secret_key": services.PASSWORD,
        }

    def at_port(self, port: int) -> dict[str, str]:
        return self.values() | {"endpoint": f"http://{services.LOOPBACK}:{port}/"}

    def gateway(self, *, tls: bool = False) -> Gateway:
        """A gateway to the server, which checks signatures."""
        self._gateways.append(Gateway(self.server, tls=tls))
        return self._gateways[-1]

    def as_stranger(self) -> dict[str, str]:
        return self.at_port(self.gateway().port) | {"secret_key": "wrong-s3cret"}

    def by_tls(self, ca: Path) -> dict[str, str]:
        place = f"https://{services.LOOPBACK}:{self.gateway(tls=True).port}/"
        return self.values() | {"endpoint": place, "tls_ca": str(ca)}

    def renew(self) -> None:
        self.close_gateways()
        if not self.server.running:
            self.server.stop()
            self.server.start()
        # A new queue: a FIFO queue remembers for minutes what it had.
        words = self.queue.partition(".")
        self.server.queue = f"{words[0]}-{next(self._queues)}{words[1]}{words[2]}"
        self.server.url_of_queue = self.server.create(self.server.queue)
        self.server.taken.clear()

    def close_gateways(self) -> None:
        while self._gateways:
            self._gateways.pop().close()

    def held(self) -> list[tuple[str, str]]:
        return [(path_of(each["Body"]), each["Body"]) for each in self.server.messages()]

    def expected(self, event: Event) -> str:
        return payloads.s3_notification(event)

    def poison(self, key: str) -> Event:
        """Beyond the 256 KiB that a queue takes."""
        return sample_events.put(key, metadata="x" * 300_000)


class Fifo(Standard):
    """A message for each event, in a FIFO queue, with a group for each object."""

    queue = "bucketevents.fifo"
    drops_repeats = True


WAYS = {"sqs": Standard, "sqs-fifo": Fifo}
