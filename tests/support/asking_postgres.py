"""A server that speaks as much of PostgreSQL's protocol as it takes to ask clients for what they have."""

from __future__ import annotations

import socket
import ssl
import struct
from dataclasses import dataclass, field

from tests.support.rogue_server import RogueServer, exactly

CLEARTEXT, GSS = 3, 7  # what a server may ask for
_SSL_REQUEST = 80877103


@dataclass(eq=False)
class Asking(RogueServer):
    """A server that asks each client for a login, with TLS if it has a context, and keeps what it is sent."""

    method: int = CLEARTEXT
    context: ssl.SSLContext | None = None
    startups: list[dict[str, str]] = field(default_factory=list)
    sent: list[bytes] = field(default_factory=list)
    certificates: list[bytes | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def talk(self, client: socket.socket) -> None:
        packet = _packet(client)
        if struct.unpack("!I", packet[:4]) == (_SSL_REQUEST,) and self.context:
            client.sendall(b"S")
            with self.context.wrap_socket(client, server_side=True) as secure:
                self.certificates.append(secure.getpeercert(binary_form=True))
                self._ask(secure, _packet(secure))
        else:
            self._ask(client, packet)

    def _ask(self, client: socket.socket, packet: bytes) -> None:
        words = packet[4:].rstrip(b"\0").decode().split("\0")
        self.startups.append(dict(zip(words[::2], words[1::2], strict=True)))
        client.sendall(b"R" + struct.pack("!II", 8, self.method))
        if exactly(client, 1):
            self.sent.append(_packet(client).rstrip(b"\0"))
        client.sendall(b"R" + struct.pack("!II", 8, 0))


def _packet(client: socket.socket) -> bytes:
    return exactly(client, struct.unpack("!I", exactly(client, 4))[0] - 4)
