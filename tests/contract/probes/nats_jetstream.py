"""JetStream, read back over a socket of our own."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from tests import services
from tests.contract.probes.base import path_of
from tests.contract.probes.nats import SUBJECT, Nats
from tests.contract.probes.nats_wire import Received, Wire

STREAM = "EVENTS"


class JetStream(Nats):
    """A message for each event, in a stream."""

    drops_repeats = True

    def __init__(self) -> None:
        self.server: services.Nats = services.nats(jetstream=True)
        self._secure: services.Nats | None = None

    def values(self) -> dict[str, str]:
        return super().values() | {"jetstream": "on"}

    def by_tls(self, ca: Path) -> dict[str, str]:
        if self._secure is None:
            self._secure = services.nats(jetstream=True, tls=True)
            self.make_stream()
        return self.at_port(self._secure.port) | {"tls": "on", "cert_authority": str(ca)}

    def renew(self) -> None:
        if not self.server.running:
            self.server.stop()
            self.server.start()
        self.make_stream()

    def make_stream(self, **options: object) -> None:
        """An empty stream, which remembers no event."""
        config = {"name": STREAM, "subjects": [SUBJECT], "storage": "file", "retention": "limits"} | options
        for server in self._servers():
            with closing(Wire(server)) as wire:
                wire.ask(f"STREAM.DELETE.{STREAM}")
                made = wire.ask(f"STREAM.CREATE.{STREAM}", **config)
                assert "error" not in made, made

    def close(self) -> None:
        for each in self._servers():
            each.stop()

    def messages(self) -> list[Received]:
        """All that is in the stream."""
        found: list[Received] = []
        for server in self._servers():
            with closing(Wire(server)) as wire:
                found += wire.stored(STREAM)
        return found

    def held(self) -> list[tuple[str, str]]:
        return [(path_of(each.body), each.body) for each in self.messages()]

    def _servers(self) -> list[services.Nats]:
        return [self.server, self._secure] if self._secure else [self.server]


WAYS = {"nats-jetstream": JetStream}
