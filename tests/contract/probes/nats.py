"""Core NATS, where a message goes to whoever is subscribed: the probe is, from the server's start on."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from app.events.model import Event
from tests import services
from tests.contract.probes.base import Probe, path_of
from tests.contract.probes.nats_wire import Received, Wire
from tests.support import sample_events
from workers.targets import payloads

SUBJECT = "minio.events"


@dataclass(eq=False)
class Heard(services.Nats):
    """A server with a subscriber, which is there before anybody else can publish."""

    heard: list[Received] = field(default_factory=list, repr=False)
    _subscriber: Wire | None = None

    def start(self) -> Self:
        super().start()
        self._subscriber = Wire(self)
        self._subscriber.subscribe("minio.>")
        return self

    def messages(self) -> list[Received]:
        """All that was published, in order, through every life of the server."""
        if self._subscriber and self.running:
            self._subscriber.flush()
        self._keep()
        return self.heard

    def stop(self) -> None:
        super().stop()
        self._part()

    def kill(self) -> None:
        super().kill()
        self._part()

    def _part(self) -> None:
        if self._subscriber:
            self._subscriber.drain()
            self._keep()
            self._subscriber = None

    def _keep(self) -> None:
        if self._subscriber:
            self.heard += self._subscriber.received
            self._subscriber.received.clear()


class Nats(Probe):
    """What the three kinds have in common."""

    type = "nats"
    tls_within_protocol = True
    can_reject = True

    server: services.Nats
    subject: str = SUBJECT

    def values(self) -> dict[str, str]:
        return {
            "address": f"{services.LOOPBACK}:{self.server.port}",
            "subject": self.subject,
            "username": services.USER,
            "password": services.PASSWORD,
        }

    def at_port(self, port: int) -> dict[str, str]:
        return self.values() | {"address": f"{services.LOOPBACK}:{port}"}

    def as_stranger(self) -> dict[str, str]:
        return self.values() | {"password": "wrong-s3cret"}

    def expected(self, event: Event) -> str:
        return payloads.log(event)

    def poison(self, key: str) -> Event:
        """Beyond the 1 MiB that a server takes unless told otherwise."""
        return sample_events.put(key, metadata="x" * 1_100_000)


class Core(Nats):
    """A message for each event, to a subscriber."""

    keeps = False

    def __init__(self) -> None:
        self.server: Heard = Heard().start()
        self._secure: Heard | None = None

    def by_tls(self, ca: Path) -> dict[str, str]:
        self._secure = self._secure or Heard(tls=True).start()
        return self.at_port(self._secure.port) | {"tls": "on", "cert_authority": str(ca)}

    def renew(self) -> None:
        if not self.server.running:
            self.server.stop()
            self.server.start()
        for each in self._servers():
            each.messages().clear()

    def close(self) -> None:
        for each in self._servers():
            each.stop()

    def held(self) -> list[tuple[str, str]]:
        with contextlib.suppress(ConnectionError):  # killed while we asked; what came before is there
            return [(path_of(each.body), each.body) for server in self._servers() for each in server.messages()]
        return []

    def _servers(self) -> list[Heard]:
        return [self.server, self._secure] if self._secure else [self.server]


WAYS = {"nats-core": Core}
