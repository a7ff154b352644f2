"""A stream of JetStream, filled over a socket of our own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from tests import services
from tests.contract.probes.nats import SUBJECT
from tests.contract.probes.nats_jetstream import STREAM, JetStream
from tests.contract.probes.nats_wire import Wire
from tests.contract.source_probes.base import SourceProbe


class Stream(SourceProbe):
    """A stream, which is one share."""

    type = "jetstream"
    way = JetStream
    server: services.Nats
    keeps_positions = True

    def values(self) -> Mapping[str, Any]:
        login = {"username": services.USER, "password": services.PASSWORD}
        return {"address": f"{services.LOOPBACK}:{self.server.port}", "stream": STREAM, **login}

    def send(self, bodies: Sequence[bytes], share: int = 0) -> None:
        self.publish(SUBJECT, bodies)

    def publish(self, subject: str | bytes, bodies: Sequence[bytes], headers: bytes = b"") -> None:
        """Append messages of a subject."""
        with closing(Wire(self.server)) as wire:
            end = self.last_sequence() + len(bodies)
            for body in bodies:
                wire.publish(subject, body, headers)
            wire.flush()
        services.until(lambda: self.last_sequence() == end, what="messages in the stream")

    def last_sequence(self) -> int:
        """The sequence number of the stream's last message."""
        return int(self.ask(f"STREAM.INFO.{STREAM}")["state"]["last_seq"])

    def ask(self, api: str, **question: object) -> Any:
        """JetStream's answer, without an error."""
        with closing(Wire(self.server)) as wire:
            answer = wire.ask(api, **question)
        assert "error" not in answer, answer
        return answer


PROBE = Stream
