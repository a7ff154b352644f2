"""A FIFO queue of SQS on ElasticMQ, filled by the server's own requests."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import orjson

from tests.contract.probes import sqs
from tests.contract.probes.base import Probe
from tests.contract.source_probes.base import SourceProbe


class Groups(SourceProbe):
    """A queue with a group for each object, in which SQS keeps the order."""

    type = "sqs"
    way: ClassVar[type[Probe]] = sqs.Fifo
    target: sqs.Standard
    server: sqs.Read
    is_sequence = False
    is_binary = False
    hostile = (b"{", b'{"Records":[{"eventName":1}]}', b"[" * 100_000, b'"text"', b"\t")

    def __init__(self, target: Probe) -> None:
        super().__init__(target)
        self._numbers = itertools.count()

    def values(self) -> Mapping[str, Any]:
        return {**self.target.values(), "visibility": "20s"}

    def impatient(self) -> Mapping[str, Any]:
        # ElasticMQ computes all the while that messages are hidden.
        return {**self.values(), "visibility": "10s"}

    def send(self, bodies: Sequence[bytes], share: int = 0) -> None:
        for first in range(0, len(bodies), 10):
            some = bodies[first : first + 10]
            parts = [[body] for body in some] if sum(map(len, some)) > 200_000 else [some]
            for part in parts:
                texts = enumerate(body.decode() for body in part)
                entries = [{"Id": str(n), "MessageBody": text} | self.group(text) for n, text in texts]
                answer = self.server.ask("SendMessageBatch", QueueUrl=self.server.url_of_queue, Entries=entries)
                assert not answer.get("Failed"), answer

    def group(self, body: str) -> dict[str, str]:
        """The members of an entry that a FIFO queue asks for."""
        try:
            group = orjson.loads(body)["Records"][0]["s3"]["object"]["key"]
        except (ValueError, TypeError, LookupError):
            group = "others"
        return {
            "MessageGroupId": hashlib.sha1(group.encode()).hexdigest(),
            "MessageDeduplicationId": str(next(self._numbers)),
        }


PROBE = Groups
