"""Mosquitto, NATS, NATS Streaming and NSQ: small brokers that the product delivers to."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tests import provision
from tests.services.certificates import certificates
from tests.services.server_process import LOOPBACK, PASSWORD, USER, Server, accepting, free_port, readable


def http_json(url: str) -> Any:
    """The JSON that a server's own monitoring page answers; any other status raises."""
    with urllib.request.urlopen(url, timeout=5) as answer:
        return json.loads(answer.read() or b"null")


@dataclass(eq=False)
class Mosquitto(Server):
    """An MQTT 3.1.1 and 5 broker with one user, on `port`, `ws_port`, `tls_port`, `wss_port` and `mtls_port`.

    The last demands the session's client certificate besides the password. Retained messages and sessions are kept
    through stop and start, not through kill.
    """

    name: ClassVar[str] = "mosquitto"
    newest: ClassVar[Path | None] = provision.NEWEST

    def prepare(self) -> None:
        self.ws_port, self.tls_port, self.wss_port, self.mtls_port = (free_port() for _ in range(4))
        passwords = self.folder / "passwords"
        self.set_up(["mosquitto_passwd", "-b", "-c", str(passwords), USER, PASSWORD])
        certs = certificates()
        tls = f"cafile {certs.ca}\ncertfile {certs.cert}\nkeyfile {certs.key}\n"
        # Without socket_domain a WebSocket listener binds to every interface, whatever its address says.
        websockets = "socket_domain ipv4\nprotocol websockets\n"
        common = (
            "per_listener_settings false\n"
            "allow_anonymous false\n"
            f"password_file {passwords}\n"
            f"user {'root' if provision.as_root() else ''}\n"
            "log_dest stdout\n"
            f"persistence true\npersistence_location {self.folder}/\n"
        )
        listeners = [
            (self.port, ""),
            (self.ws_port, websockets),
            (self.tls_port, tls),
            (self.wss_port, websockets + tls),
            (self.mtls_port, f"{tls}require_certificate true\n"),
        ]
        text = common + "".join(f"listener {port} {LOOPBACK}\n{more}" for port, more in listeners)
        (self.folder / "mosquitto.conf").write_text(text)

    def argv(self) -> Sequence[str | Path]:
        return ["/usr/sbin/mosquitto", "-c", self.folder / "mosquitto.conf"]

    def ping(self) -> None:
        accepting(self.wss_port)
        login = b"".join(len(part).to_bytes(2, "big") + part for part in (b"", USER.encode(), PASSWORD.encode()))
        connect = b"\x00\x04MQTT\x04\xc2\x00\x3c" + login
        with socket.create_connection((LOOPBACK, self.port), timeout=5) as client:
            client.sendall(bytes([0x10, len(connect)]) + connect)
            assert client.recv(4) == b"\x20\x02\x00\x00", "CONNECT was not accepted"
            client.sendall(b"\xe0\x00")


@dataclass(eq=False)
class Nats(Server):
    """nats-server with one user, or a `token` instead. `tls` asks for it from all, `client_cert` for a certificate too.

    JetStream's streams are kept through kill and start.
    """

    name: ClassVar[str] = "nats"
    newest: ClassVar[Path | None] = provision.NEWEST
    stop_signal: ClassVar[signal.Signals] = signal.SIGINT
    jetstream: bool = False
    tls: bool = False
    client_cert: bool = False
    token: str | None = None

    def prepare(self) -> None:
        self.monitor_port = free_port()
        (self.folder / "nats.conf").write_text(self.configuration())

    def configuration(self) -> str:
        """What the configuration file says."""
        login = f'token: "{self.token}"' if self.token else f'user: "{USER}", password: "{PASSWORD}"'
        text = f'host: {LOOPBACK}\nport: {self.port}\nhttp: "{LOOPBACK}:{self.monitor_port}"\n'
        text += f"authorization {{ {login} }}\n"
        if self.jetstream:
            text += f'jetstream {{ store_dir: "{self.folder}/jetstream" }}\n'
        if self.secure:
            certs, verify = certificates(), "true" if self.client_cert else "false"
            files = f'cert_file: "{certs.cert}", key_file: "{certs.key}", ca_file: "{certs.ca}"'
            text += f"tls {{ {files}, verify: {verify} }}\n"
        return text

    @property
    def secure(self) -> bool:
        """Whether a client has to speak TLS."""
        return self.tls or self.client_cert

    def argv(self) -> Sequence[str | Path]:
        return ["/usr/sbin/nats-server", "-c", self.folder / "nats.conf"]

    def ping(self) -> None:
        accepting(self.port)
        assert http_json(f"http://{LOOPBACK}:{self.monitor_port}/healthz") == {"status": "ok"}

    @property
    def url(self) -> str:
        """The nats:// or tls:// URL, with its login."""
        login = self.token or f"{USER}:{PASSWORD}"
        return f"{'tls' if self.secure else 'nats'}://{login}@{LOOPBACK}:{self.port}"


@dataclass(eq=False)
class NatsStreaming(Nats):
    """NATS Streaming (STAN) with its messages in files, which are kept through kill and start.

    `publish` and `messages` are STAN's own Go clients: no Python client of it runs any more.
    """

    name: ClassVar[str] = "nats_streaming"
    newest: ClassVar[Path | None] = None
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    cluster_id: ClassVar[str] = "test-cluster"

    def configuration(self) -> str:
        store = f'cluster_id: {self.cluster_id}, store: file, dir: "{self.folder}/store"'
        # The streaming part is a client of its own server, so it logs in like any other.
        login = f', username: "{USER}", password: "{PASSWORD}"' if not self.token else ""
        tls = ""
        if self.secure:
            certs = certificates()
            files = f'client_cert: "{certs.client_cert}", client_key: "{certs.client_key}"'
            tls = f', tls {{ client_ca: "{certs.ca}", {files} }}'
        return f"{super().configuration()}streaming {{ {store}{login}{tls} }}\n"

    def argv(self) -> Sequence[str | Path]:
        argv: list[str | Path] = [provision.STAN / "nats-streaming-server", "-c", self.folder / "nats.conf"]
        return [*argv, "--auth", self.token] if self.token else argv

    def ping(self) -> None:
        accepting(self.port)
        # It calls itself STANDALONE before it listens; this is the last of the subjects that it subscribes to.
        last = f"_STAN.discover.{self.cluster_id}.pings"
        found = http_json(f"http://{LOOPBACK}:{self.monitor_port}/subsz?subs=1&test={last}")
        assert found.get("total") == 1, "NATS Streaming does not listen yet"

    def _client(self, kind: str) -> list[str]:
        login = ["-s", self.url, "-c", self.cluster_id, "-id", kind]
        return [str(provision.STAN / f"stan-{kind}"), *login]

    def publish(self, subject: str, message: str) -> None:
        """Publish one message by stan-pub, acknowledged by the server."""
        argv = [*self._client("pub"), subject, message]
        subprocess.run(argv, env=_trusting(), capture_output=True, timeout=30, check=True)

    def messages(self, subject: str, count: int, timeout: float = 10) -> list[bytes]:
        """The first `count` messages of a subject, read by stan-sub; AssertionError when there are fewer."""
        argv = [*self._client("sub"), "--all", subject]
        found: list[bytes] = []
        with subprocess.Popen(argv, env=_trusting(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child:
            try:
                out = child.stdout
                assert out is not None
                found = _received(out.fileno(), count, timeout)
            finally:
                child.kill()
        assert len(found) == count, f"{len(found)} of {count} messages on {subject}"
        return found


def _trusting() -> dict[str, str]:
    """An environment in which a Go program trusts the session's authority."""
    return {**os.environ, "SSL_CERT_FILE": str(certificates().ca)}


def _received(descriptor: int, count: int, timeout: float) -> list[bytes]:
    """What stan-sub prints: `[#1] Received: sequence:1 subject:"s" data:"..." timestamp:1`, with Go's escapes."""
    deadline, pending = time.monotonic() + timeout, b""
    found: list[bytes] = []
    while len(found) < count and (left := deadline - time.monotonic()) > 0:
        if not readable(descriptor, left) or not (part := os.read(descriptor, 65536)):
            break
        *lines, pending = (pending + part).split(b"\n")
        quoted = [match[1] for line in lines if (match := re.search(rb' data:"((?:[^"\\]|\\.)*)"', line))]
        found += [text.decode("unicode_escape").encode("latin-1") for text in quoted]
    return found[:count]


@dataclass(eq=False)
class Nsqd(Server):
    """One nsqd, on `port`, `http_port` and `https_port`; TLS when the client asks for it.

    `strict` demands the session's client certificate of every TCP and HTTPS client; plain HTTP stays open. What is not
    yet consumed is kept through stop and start.
    """

    name: ClassVar[str] = "nsqd"
    strict: bool = False
    extra: tuple[str, ...] = ()

    def prepare(self) -> None:
        self.http_port, self.https_port = free_port(), free_port()
        (self.folder / "data").mkdir()

    def argv(self) -> Sequence[str | Path]:
        certs = certificates()
        # Each of the three addresses would otherwise be on every interface.
        addresses = {"tcp": self.port, "http": self.http_port, "https": self.https_port}
        return [
            provision.NSQ / "nsqd",
            *(f"-{kind}-address={LOOPBACK}:{port}" for kind, port in addresses.items()),
            f"-broadcast-address={LOOPBACK}",
            f"-data-path={self.folder}/data",
            f"-tls-cert={certs.cert}",
            f"-tls-key={certs.key}",
            f"-tls-root-ca-file={certs.ca}",
            *(["-tls-required=tcp-https", "-tls-client-auth-policy=require-verify"] if self.strict else []),
            *self.extra,
        ]

    def ping(self) -> None:
        accepting(self.port)
        accepting(self.https_port)
        assert http_json(f"http://{LOOPBACK}:{self.http_port}/stats?format=json")["health"] == "OK"


def mosquitto() -> Mosquitto:
    """A running Mosquitto of its own."""
    return Mosquitto().start()


def nats(*, jetstream: bool = False, tls: bool = False, client_cert: bool = False, token: str | None = None) -> Nats:
    """A running nats-server of its own."""
    return Nats(jetstream, tls, client_cert, token).start()


def nats_streaming(*, tls: bool = False, client_cert: bool = False, token: str | None = None) -> NatsStreaming:
    """A running NATS Streaming server of its own."""
    return NatsStreaming(False, tls, client_cert, token).start()


def nsqd(*, strict: bool = False, extra: Sequence[str] = ()) -> Nsqd:
    """A running nsqd of its own; `extra` are further command line options."""
    return Nsqd(strict, tuple(extra)).start()
