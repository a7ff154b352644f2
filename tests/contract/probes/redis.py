"""Redis, read back over a socket of our own."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import hiredis

from app.events.model import Event
from tests import services
from tests.contract.probes.base import Probe, path_of
from workers.targets import payloads


class _Redis(Probe):
    type = "redis"
    one_request = True
    format = "access"
    shape = "minio"

    def __init__(self) -> None:
        # Durable, so that a kill loses nothing it has answered; 7.0 from Debian, because the wheel's has no TLS.
        self.server: services.Redis = services.redis(tls=True, password=services.PASSWORD, durable=True)

    def values(self) -> dict[str, str]:
        return {
            "address": f"{services.LOOPBACK}:{self.server.port}",
            "key": "bucketevents",
            "format": self.format,
            "password": services.PASSWORD,
            "access_shape": self.shape,
        }

    def at_port(self, port: int) -> dict[str, str]:
        return self.values() | {"address": f"{services.LOOPBACK}:{port}"}

    def as_stranger(self) -> dict[str, str]:
        return self.values() | {"password": "wrong-s3cret"}

    def by_tls(self, ca: Path) -> dict[str, str]:
        return self.at_port(self.server.tls_port) | {"tls": "on", "tls_ca": str(ca)}

    def renew(self) -> None:
        if not self.server.running:
            self.server.stop()
            self.server.start()
        self.ask("FLUSHALL")

    def ask(self, *command: str | bytes) -> Any:
        """One command, by a client that shares no code with the target's."""
        words = [word if isinstance(word, bytes) else word.encode() for word in command]
        request = b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
        reader = hiredis.Reader()
        with socket.create_connection((services.LOOPBACK, self.server.port), timeout=10) as wire:
            wire.sendall(b"*2\r\n$4\r\nAUTH\r\n$%d\r\n%s\r\n" % (len(services.PASSWORD), services.PASSWORD.encode()))
            wire.sendall(request)
            answers: list[Any] = []
            while len(answers) < 2:
                answer = reader.gets()
                if answer is False:
                    received = wire.recv(1 << 20)
                    assert received, "Redis closed the connection"
                    reader.feed(received)
                else:
                    answers.append(answer)
        assert answers[0] == b"OK"
        if isinstance(answers[1], hiredis.ReplyError):
            raise answers[1]
        return answers[1]


class Namespace(_Redis):
    """A hash with a field for each object."""

    format = "namespace"
    is_namespace = True

    def held(self) -> list[tuple[str, str]]:
        flat = [text.decode() for text in self.ask("HGETALL", "bucketevents")]
        return list(zip(flat[::2], flat[1::2], strict=True))

    def expected(self, event: Event) -> str:
        return payloads.records(event)


class Access(_Redis):
    """A list with an entry for each event."""

    def held(self) -> list[tuple[str, str]]:
        entries = [text.decode() for text in self.ask("LRANGE", "bucketevents", "0", "-1")]
        return [(path_of(entry), entry) for entry in entries]

    def expected(self, event: Event) -> str:
        return payloads.redis_access(event, self.shape)


class GuideAccess(Access):
    """The same in the shape of the old guides."""

    shape = "guide"


class Stream(_Redis):
    """A stream with an entry for each event."""

    format = "stream"

    def entries(self) -> list[tuple[bytes, dict[str, str]]]:
        """The ids and the fields of the stream's entries, oldest first."""
        return [
            (id_, {name.decode(): value.decode() for name, value in zip(words[::2], words[1::2], strict=True)})
            for id_, words in self.ask("XRANGE", "bucketevents", "-", "+")
        ]

    def held(self) -> list[tuple[str, str]]:
        return [(path_of(fields["body"]), fields["body"]) for _, fields in self.entries()]

    def expected(self, event: Event) -> str:
        return payloads.log(event)


WAYS = {"redis-namespace": Namespace, "redis-access": Access, "redis-access-guide": GuideAccess, "redis-stream": Stream}
