"""NATS Streaming, read back by its own Go client."""

from __future__ import annotations

import itertools
import urllib.error
from pathlib import Path

from tests import services
from tests.contract.probes.base import path_of
from tests.contract.probes.nats import Nats
from tests.services.messaging import http_json

_numbers = itertools.count(1)


class Streaming(Nats):
    """A message for each event, in a channel; one at a time."""

    asynchronous = "off"

    def __init__(self) -> None:
        self.server: services.NatsStreaming = services.nats_streaming()
        self._secure: services.NatsStreaming | None = None

    def values(self) -> dict[str, str]:
        return super().values() | {
            "streaming": "on",
            "streaming_cluster_id": self.server.cluster_id,
            "streaming_async": self.asynchronous,
        }

    def by_tls(self, ca: Path) -> dict[str, str]:
        self._secure = self._secure or services.nats_streaming(tls=True)
        return self.at_port(self._secure.port) | {"tls": "on", "cert_authority": str(ca)}

    def renew(self) -> None:
        if not self.server.running:
            self.server.stop()
            self.server.start()
        # A channel cannot be emptied.
        self.subject = f"minio.events.{next(_numbers)}"

    def close(self) -> None:
        for each in self._servers():
            each.stop()

    def held(self) -> list[tuple[str, str]]:
        bodies: list[str] = []
        for server in self._servers():
            if many := self._last(server):
                bodies += [body.decode() for body in server.messages(self.subject, many)]
        return [(path_of(body), body) for body in bodies]

    def _last(self, server: services.NatsStreaming) -> int:
        place = f"http://{services.LOOPBACK}:{server.monitor_port}/streaming/channelsz?channel={self.subject}"
        try:
            return int(http_json(place)["msgs"])
        except urllib.error.HTTPError as error:
            if error.code != 404:  # no such channel yet
                raise
            return 0

    def _servers(self) -> list[services.NatsStreaming]:
        return [self.server, self._secure] if self._secure else [self.server]


class AsyncStreaming(Streaming):
    """The same with many unacknowledged."""

    asynchronous = "on"


WAYS = {"nats-streaming": Streaming, "nats-streaming-async": AsyncStreaming}
