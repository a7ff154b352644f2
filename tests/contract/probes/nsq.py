"""nsqd, whose topic is read from the files of its queue: it has no way to look at messages without taking them.

With `-mem-queue-size=0` every message is in these files before nsqd answers OK, so that a kill loses none.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

from app.events.model import Event
from tests import services
from tests.contract.probes.base import Probe, path_of
from tests.support import sample_events
from workers.targets import payloads

TOPIC = "minio_events"
DURABLE = ("-mem-queue-size=0", "-sync-every=1")

# What nsqd writes before each body: its size, then a timestamp, the attempts and an id.
_SIZE, _HEAD = 4, 8 + 2 + 16


class Log(Probe):
    """A message for each event."""

    type = "nsq"
    one_request = True
    strangers_fail_at = "tls"
    tls_within_protocol = True
    can_reject = True

    def __init__(self) -> None:
        self.server: services.Nsqd = services.nsqd(extra=DURABLE)
        self._strict: services.Nsqd | None = None

    def values(self) -> dict[str, str]:
        return {"nsqd_address": f"{services.LOOPBACK}:{self.server.port}", "topic": TOPIC}

    def at_port(self, port: int) -> dict[str, str]:
        return self.values() | {"nsqd_address": f"{services.LOOPBACK}:{port}"}

    def as_stranger(self) -> dict[str, str]:
        """nsqd knows no password; who it is that comes, it knows by a certificate."""
        certs = services.certificates()
        strangers = {"client_cert": str(certs.other_cert), "client_key": str(certs.other_key)}
        return self.by_tls(certs.ca) | strangers

    def by_tls(self, ca: Path) -> dict[str, str]:
        self._strict = self._strict or services.nsqd(strict=True, extra=DURABLE)
        certs = services.certificates()
        ours = {"client_cert": str(certs.client_cert), "client_key": str(certs.client_key)}
        return self.at_port(self._strict.port) | {"tls": "on", "tls_ca": str(ca)} | ours

    def renew(self) -> None:
        if not self.server.running:
            self.server.stop()
            self.server.start()
        for each in self._servers():
            for action in ("create", "delete"):
                self.ask(each, f"topic/{action}?topic={TOPIC}")

    def close(self) -> None:
        for each in self._servers():
            each.stop()

    def ask(self, server: services.Nsqd, request: str) -> None:
        """A command to nsqd's own HTTP interface."""
        place = f"http://{services.LOOPBACK}:{server.http_port}/{request}"
        urllib.request.urlopen(urllib.request.Request(place, method="POST"), timeout=5).close()

    def held(self) -> list[tuple[str, str]]:
        bodies = [body.decode() for server in self._servers() for body in queued(server, TOPIC)]
        return [(path_of(body), body) for body in bodies]

    def expected(self, event: Event) -> str:
        return payloads.log(event)

    def poison(self, key: str) -> Event:
        """Beyond the 1,024,768 bytes that nsqd takes unless told otherwise."""
        return sample_events.put(key, metadata="x" * 1_100_000)

    def _servers(self) -> list[services.Nsqd]:
        return [self.server, self._strict] if self._strict else [self.server]


def queued(server: services.Nsqd, topic: str) -> Iterator[bytes]:
    """The bodies of a topic that no channel has taken from yet, in order."""
    for file in sorted((server.folder / "data").glob(f"{topic}.diskqueue.[0-9]*.dat")):
        content = file.read_bytes()
        start = 0
        while start + _SIZE <= len(content):
            end = start + _SIZE + int.from_bytes(content[start : start + _SIZE], "big")
            if end > len(content):  # it is being written
                break
            yield content[start + _SIZE + _HEAD : end]
            start = end


WAYS = {"nsq": Log}
