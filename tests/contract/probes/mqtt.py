"""Mosquitto, read back by a subscriber on a socket of our own."""

from __future__ import annotations

import contextlib
import io
import socket
import threading
from pathlib import Path
from typing import IO

from app.events.model import Event
from tests import services
from tests.contract.probes.base import Probe, path_of
from tests.support import sample_events
from workers.targets import payloads

TOPIC = "minio/events"
LARGEST = 40_000  # bytes of payload that the broker takes


class Subscriber:
    """All that is published on a topic, in order; it shares no code with the target's client.

    With version 5 it also has, for each message, its user properties and its content type.
    """

    def __init__(self, topic: str = TOPIC, *, version: int = 4) -> None:
        self.payloads: list[str] = []
        self.topics: list[str] = []
        self.properties: list[dict[str, str]] = []
        self.content_types: list[str] = []
        self._version = version
        self._none = b"\x00" if version == 5 else b""  # no properties
        self._topic = topic.encode()
        self._wire: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._pong = threading.Event()

    def subscribe(self, port: int) -> None:
        """Listen to the topic from now on."""
        self.leave()
        texts = [f"watcher{id(self)}", services.USER, services.PASSWORD]
        login = b"".join(len(text).to_bytes(2, "big") + text.encode() for text in texts)
        wire = socket.create_connection((services.LOOPBACK, port), timeout=10)
        head = b"\x00\x04MQTT" + bytes([self._version]) + b"\xc2\x00\x00" + self._none
        wire.sendall(_packet(0x10, head + login))
        wanted = len(self._topic).to_bytes(2, "big") + self._topic + b"\x00"
        wire.sendall(_packet(0x82, b"\x00\x01" + self._none + wanted))
        file = wire.makefile("rb")
        kind, content = _read(file) or (0, b"")
        assert (kind, content[:2]) == (0x20, b"\x00\x00"), "CONNECT was not accepted"
        assert _read(file) == (0x90, b"\x00\x01" + self._none + b"\x00"), "SUBSCRIBE was not accepted"
        wire.settimeout(None)
        self._wire = wire
        self._thread = threading.Thread(target=self._listen, args=[file], daemon=True)
        self._thread.start()

    def heard(self) -> list[str]:
        """All that the broker had for us when this was called."""
        if self._wire is not None and self._thread is not None and self._thread.is_alive():
            self._pong.clear()
            with contextlib.suppress(OSError):
                self._wire.sendall(b"\xc0\x00")
                services.until(lambda: self._pong.is_set() or not self._listening())
        return list(self.payloads)

    def leave(self) -> None:
        """Hear what is still to be heard, and end."""
        if self._wire is not None:
            with contextlib.suppress(OSError):
                self._wire.shutdown(socket.SHUT_WR)
            if self._thread is not None:
                self._thread.join(10)
            self._wire.close()
        self._wire = self._thread = None

    def _listening(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _listen(self, file: IO[bytes]) -> None:
        with file, contextlib.suppress(OSError):
            while packet := _read(file):
                kind, content = packet
                if kind & 0xF0 == 0x30:
                    end = 2 + int.from_bytes(content[:2], "big")
                    self.topics.append(content[2:end].decode())
                    content = content[end:]
                    if self._version == 5:
                        size, start = _number(io.BytesIO(content))
                        user, content_type = _properties(content[start : start + size])
                        self.properties.append(user)
                        self.content_types.append(content_type)
                        content = content[start + size :]
                    self.payloads.append(content.decode())
                elif kind == 0xD0:
                    self._pong.set()


class Watched(services.Mosquitto):
    """A broker with a subscriber, who is there before anyone is told that it runs."""

    def prepare(self) -> None:
        super().prepare()
        self.subscriber = Subscriber()
        configuration = self.folder / "mosquitto.conf"
        # Not 0, which is without limit for subscribers but ends every connection that something was refused on.
        limits = f"max_queued_messages 1000000\nmessage_size_limit {LARGEST}\n"
        # What it writes to its output stays in a buffer for long.
        self.journal = self.folder / "journal"
        limits += f"log_dest file {self.journal}\n"
        configuration.write_text(limits + configuration.read_text())

    def said(self) -> str:
        """Its log until now."""
        return self.journal.read_text()

    def ping(self) -> None:
        super().ping()
        self.subscriber.subscribe(self.port)


class Qos1(Probe):
    """3.1.1 over TCP, each message confirmed."""

    type = "mqtt"
    version = "3.1.1"
    qos = "1"
    websocket = False

    def __init__(self) -> None:
        self.server: Watched = Watched().start()

    def values(self) -> dict[str, str]:
        return self.at_port(self.server.ws_port if self.websocket else self.server.port)

    def at_port(self, port: int) -> dict[str, str]:
        return {
            "broker": f"{'ws' if self.websocket else 'tcp'}://{services.LOOPBACK}:{port}",
            "topic": TOPIC,
            "username": services.USER,
            "password": services.PASSWORD,
            "qos": self.qos,
            "version": self.version,
        }

    def as_stranger(self) -> dict[str, str]:
        return self.values() | {"password": "wrong-s3cret"}

    def by_tls(self, ca: Path) -> dict[str, str]:
        place = f"wss://{services.LOOPBACK}:{self.server.wss_port}"
        if not self.websocket:
            place = f"tls://{services.LOOPBACK}:{self.server.tls_port}"
        return self.values() | {"broker": place, "tls_ca": str(ca)}

    def renew(self) -> None:
        if not self.server.running:
            self.server.stop()
            self.server.start()
        self.server.subscriber.heard()  # what belongs to the test before
        self.server.subscriber.payloads.clear()

    def close(self) -> None:
        super().close()
        self.server.subscriber.leave()

    def held(self) -> list[tuple[str, str]]:
        return [(path_of(payload), payload) for payload in self.server.subscriber.heard()]

    def expected(self, event: Event) -> str:
        return payloads.log(event)

    def poison(self, key: str) -> Event:
        return sample_events.put(key, metadata="x" * LARGEST)


class Qos0(Qos1):
    """3.1.1 over TCP, nothing confirmed by itself."""

    qos = "0"


class Qos2(Qos1):
    """3.1.1 over a WebSocket, with the handshake in four parts."""

    qos = "2"
    websocket = True


class Version5(Qos1):
    """Version 5, in which the broker can say no."""

    version = "5"
    can_reject = True


class Version5Qos2(Version5):
    """The same with the handshake in four parts."""

    qos = "2"


def _packet(kind: int, content: bytes) -> bytes:
    assert len(content) < 128
    return bytes([kind, len(content)]) + content


def _read(file: IO[bytes]) -> tuple[int, bytes] | None:
    head = file.read(1)
    if not head:
        return None
    size, _ = _number(file)
    return head[0], file.read(size)


def _number(file: IO[bytes]) -> tuple[int, int]:
    """A number of as many bytes as it needs, and how many they are."""
    number = bytes_read = 0
    while True:
        (digit,) = file.read(1) or b"\x00"
        number |= (digit & 127) << 7 * bytes_read
        bytes_read += 1
        if not digit & 128:
            return number, bytes_read


def _properties(content: bytes) -> tuple[dict[str, str], str]:
    """The user properties, each of which must be another, and the content type; there must be no others."""
    file, user, content_type = io.BytesIO(content), dict[str, str](), ""

    def text() -> str:
        return file.read(int.from_bytes(file.read(2), "big")).decode()

    while kind := file.read(1):
        if kind == b"\x03":
            content_type = text()
            continue
        assert kind == b"\x26", f"a property of kind {kind.hex()}"
        name, value = text(), text()
        assert name not in user
        user[name] = value
    return user, content_type


WAYS = {"mqtt-qos0": Qos0, "mqtt-qos1": Qos1, "mqtt-qos2": Qos2, "mqtt-5": Version5, "mqtt-5-qos2": Version5Qos2}
