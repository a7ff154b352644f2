"""A server that speaks as much of PostgreSQL's protocol as it takes to ask clients for what they have."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass, field

from tests.services.server_process import LOOPBACK

CLEARTEXT, GSS = 3, 7  # what a server may ask for
_SSL_REQUEST = 80877103


@dataclass
class Asking:
    """A server that asks each client for a login, with TLS if it has a context, and keeps what it is sent."""

    method: int = CLEARTEXT
    context: ssl.SSLContext | None = None
    startups: list[dict[str, str]] = field(default_factory=list)
    sent: list[bytes] = field(default_factory=list)
    certificates: list[bytes | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        """Stop."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            client.settimeout(30)
            with client, suppress(OSError, EOFError):
                packet = _packet(client)
                if struct.unpack("!I", packet[:4]) == (_SSL_REQUEST,) and self.context:
                    client.sendall(b"S")
                    with self.context.wrap_socket(client, server_side=True) as secure:
                        self.certificates.append(secure.getpeercert(binary_form=True))
                        self._talk(secure, _packet(secure))
                else:
                    self._talk(client, packet)

    def _talk(self, client: socket.socket, packet: bytes) -> None:
        words = packet[4:].rstrip(b"\0").decode().split("\0")
        self.startups.append(dict(zip(words[::2], words[1::2], strict=True)))
        client.sendall(b"R" + struct.pack("!II", 8, self.method))
        if _exactly(client, 1):
            self.sent.append(_packet(client).rstrip(b"\0"))
        client.sendall(b"R" + struct.pack("!II", 8, 0))


def _packet(client: socket.socket) -> bytes:
    return _exactly(client, struct.unpack("!I", _exactly(client, 4))[0] - 4)


def _exactly(client: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        part = client.recv(size - len(content))
        if not part:
            raise EOFError
        content += part
    return content
