"""A NATS client of some lines, which shares no code with the targets': it subscribes, asks, and reads back."""

from __future__ import annotations

import json
import socket
import ssl
from itertools import count
from typing import Any, NamedTuple

from tests import services


class Received(NamedTuple):
    """One message."""

    subject: str
    headers: str
    body: str


class Wire:
    """One connection. Messages gather in the socket until somebody asks for them."""

    def __init__(self, server: services.Nats, user: str = services.USER) -> None:
        self._socket: socket.socket = socket.create_connection((services.LOOPBACK, server.port), timeout=10)
        self._buffer = b""
        self._numbers = count(1)
        self.received: list[Received] = []
        self.info: dict[str, Any] = json.loads(self._line().removeprefix("INFO "))
        if server.secure:
            certs = services.certificates()
            context = ssl.create_default_context(cafile=str(certs.ca))
            context.load_cert_chain(certs.client_cert, certs.client_key)
            self._socket = context.wrap_socket(self._socket, server_hostname=services.LOOPBACK)
        login = {"auth_token": server.token} if server.token else {"user": user, "pass": services.PASSWORD}
        options = login | {"verbose": False, "headers": True, "no_responders": True}
        self._send(f"CONNECT {json.dumps(options)}\r\n".encode())
        self.flush()

    def subscribe(self, subject: str) -> None:
        """Have all messages of a subject from now on."""
        self._send(f"SUB {subject} {next(self._numbers)}\r\n".encode())
        self.flush()

    def publish(self, subject: str | bytes, body: bytes, headers: bytes = b"") -> None:
        """Send a message, with headers as they are written."""
        named = subject.encode() if isinstance(subject, str) else subject
        sizes = f"{len(headers)} {len(headers) + len(body)}" if headers else str(len(body))
        self._send(b"%s %s %s\r\n%s%s\r\n" % (b"HPUB" if headers else b"PUB", named, sizes.encode(), headers, body))

    def flush(self) -> None:
        """Return when everything that the server had for us is in `received`."""
        self._send(b"PING\r\n")
        while self._read() != "PONG":
            pass

    def drain(self) -> None:
        """Read what a server that is no more has sent."""
        try:
            while True:
                self._read()
        except (ConnectionError, ssl.SSLError):
            self._socket.close()

    def ask(self, api: str, **question: object) -> Any:
        """JetStream's answer on one of its `$JS.API` subjects, errors included."""
        return self.request(f"$JS.API.{api}", json.dumps(question).encode() if question else b"")

    def request(self, subject: str, body: bytes, headers: bytes = b"") -> Any:
        """The answer to a message; None if nobody is there to give one."""
        number = next(self._numbers)
        inbox = f"_INBOX.probe.{number}"
        self._send(f"SUB {inbox} {number}\r\n".encode())
        self.publish(f"{subject} {inbox}", body, headers)
        while not (found := [each for each in self.received if each.subject == inbox]):
            self._read()
        self.received.remove(found[0])
        return json.loads(found[0].body or "null")

    def stored(self, stream: str) -> list[Received]:
        """All messages of a JetStream stream, in order."""
        many = self.ask(f"STREAM.INFO.{stream}")["state"]["messages"]
        inbox = f"_INBOX.stored.{next(self._numbers)}"
        self.subscribe(inbox)
        config = {"deliver_subject": inbox, "deliver_policy": "all", "ack_policy": "none", "replay_policy": "instant"}
        made = self.ask(f"CONSUMER.CREATE.{stream}", stream_name=stream, config=config)
        taken: list[Received] = []
        while len(taken) < many:
            # A consumer's messages bear the subject that they were published to.
            taken += [each for each in self.received if not each.subject.startswith("_INBOX.")]
            self.received = [each for each in self.received if each.subject.startswith("_INBOX.")]
            if len(taken) < many:
                self._read()
        self.ask(f"CONSUMER.DELETE.{stream}.{made['name']}")
        return taken

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _read(self) -> str:
        """The next line, of a message its first; a message goes to `received`."""
        line = self._line()
        words = line.split(" ")
        if words[0] == "MSG":
            self._message(words[1], 0, int(words[-1]))
        elif words[0] == "HMSG":
            self._message(words[1], int(words[-2]), int(words[-1]))
        elif line == "PING":
            self._send(b"PONG\r\n")
        else:
            assert not line.startswith("-ERR"), line
        return line

    def _message(self, subject: str, header: int, size: int) -> None:
        content = self._exactly(size + 2)
        self.received.append(Received(subject, content[:header].decode(), content[header:size].decode()))

    def _line(self) -> str:
        while b"\r\n" not in self._buffer:
            self._fill()
        line, _, self._buffer = self._buffer.partition(b"\r\n")
        return line.decode()

    def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._fill()
        found, self._buffer = self._buffer[:size], self._buffer[size:]
        return found

    def _fill(self) -> None:
        part = self._socket.recv(1 << 20)
        if not part:
            raise ConnectionError("NATS closed the connection")
        self._buffer += part

    def _send(self, data: bytes) -> None:
        self._socket.sendall(data)
