"""A webhook receiver that writes down what it gets."""

from __future__ import annotations

import base64
from pathlib import Path

from app.config import target_settings
from app.events.model import Event
from tests import services
from tests.contract.probes.base import Probe, path_of
from tests.support import sample_events
from workers.targets import create, payloads
from workers.targets.base import Target

_TAKES_NO_POISON = services.Answer(status=422, body="no such thing", containing="poison")


class Log(Probe):
    """A POST for each event."""

    type = "webhook"
    strangers_fail_at = "deliver"  # it says whom it lets in only when it is sent something
    can_reject = True
    secret = "t0ken-s3cret"

    def __init__(self) -> None:
        self.server: services.Receiver = services.receiver()
        self.server.set(_TAKES_NO_POISON)
        self._secure: services.Receiver | None = None
        self._refuses = False

    def values(self) -> dict[str, str]:
        return {
            "endpoint": self.server.url,
            "auth_token": self.secret,
            "allow_private": "on",
            "read_timeout": "2s",
        }

    def at_port(self, port: int) -> dict[str, str]:
        return self.values() | {"endpoint": f"http://{services.LOOPBACK}:{port}/"}

    def as_stranger(self) -> dict[str, str]:
        self._refuses = True
        self.server.set(status=401, body="who are you, wrong-s3cret?")
        return self.values() | {"auth_token": "wrong-s3cret"}

    def by_tls(self, ca: Path) -> dict[str, str]:
        self._secure = self._secure or services.receiver(tls=True)
        return self.values() | {"endpoint": self._secure.url, "tls_ca": str(ca)}

    def renew(self) -> None:
        if not self.server.running:
            self.server.stop()
            self.server.start()
        if self._refuses:
            self._refuses = False
            self.server.set(_TAKES_NO_POISON)
        for each in (self.server, self._secure):
            if each:
                each.forget()

    def close(self) -> None:
        for each in (self.server, self._secure):
            if each:
                each.stop()

    def held(self) -> list[tuple[str, str]]:
        posts = [*self.server.requests(), *(self._secure.requests() if self._secure else ())]
        bodies = [post.body.decode() for post in posts if post.status == 200]
        return [(path_of(body), body) for body in bodies]

    def expected(self, event: Event) -> str:
        return payloads.log(event)

    def poison(self, key: str) -> Event:
        return sample_events.put(key, metadata="poison")


SECRETS = [f"whsec_{base64.b64encode(bytes([letter]) * 32).decode()}" for letter in b"ab"]


def webhook(endpoint: str, **changes: str) -> Target:
    values = {"endpoint": endpoint, "allow_private": "on", "timeout": "2s", "read_timeout": "2s"}
    return create("webhook", target_settings.load("webhook", dict(values | changes)))


WAYS = {"webhook": Log}
