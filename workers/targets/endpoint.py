"""The addresses that a target connects to: how to check one, and which of several nodes comes next.

The checks of name resolution, connection and TLS need no target protocol. Where TLS begins within a protocol (NATS,
NSQ, PostgreSQL, MySQL) it is part of logging in, and only the adapter can check it.
"""

import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from app.config.fields.addresses import HostPort
from workers.targets import tcp


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address to connect to; a host that begins with `/` is a unix socket.

    `context` creates the TLS context if TLS begins with the first byte, and `name` is the name that the certificate
    must match, if it is not the host.
    """

    address: HostPort
    context: Callable[[], ssl.SSLContext] | None = None
    name: str = ""

    def resolve(self) -> list[str]:
        """Return the addresses of the host. Raises `OSError`."""
        host, port = self.address
        if host.startswith("/"):
            return [host]
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(entry[4][0]) for entry in infos))

    def connect(self, addresses: Sequence[str], timeout: float) -> socket.socket:
        """Connect to the first address that accepts a connection, within `timeout` seconds. Raises `OSError`."""
        failure = OSError("there is no address to connect to")
        ends = time.monotonic() + timeout
        for left, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
            try:
                if address.startswith("/"):
                    return _unix(address, timeout)
                opened = tcp.connect(address, self.address.port, tcp.share(ends, left))
            except OSError as error:
                failure = error
            else:
                opened.settimeout(timeout)
                return opened
        raise failure


def tls_handshake(wire: socket.socket, context: ssl.SSLContext, name: str) -> str:
    """Start TLS over the connection; return the TLS version and the cipher. Raises `OSError`."""
    with context.wrap_socket(wire, server_hostname=name) as wrapped:
        cipher = wrapped.cipher()
        return f"{wrapped.version()}, {cipher[0]}" if cipher else str(wrapped.version())


def _unix(path: str, timeout: float) -> socket.socket:
    wire = socket.socket(socket.AF_UNIX)
    try:
        wire.settimeout(timeout)
        wire.connect(path)
    except OSError:
        wire.close()
        raise
    return wire


N = TypeVar("N")
C = TypeVar("C")


class NodeRotation(Generic[N]):
    """The nodes, of which the first is connected to; one that cannot be reached becomes the last."""

    def __init__(self, nodes: Iterable[N], timeout: float) -> None:
        """`timeout` is in seconds: after it no further node is tried, so that nodes that hang do not add up."""
        self._nodes = deque(nodes)
        self._timeout = timeout

    def connect(self, connect: Callable[[N], C], errors: type[Exception] | tuple[type[Exception], ...]) -> C:
        """Return the connection to the first node to which `connect` makes one. Raises its last one of `errors`."""
        ends = time.monotonic() + self._timeout
        tried = 0
        while True:
            tried += 1
            try:
                return connect(self._nodes[0])
            except errors:
                self._nodes.rotate(-1)
                if tried == len(self._nodes) or time.monotonic() >= ends:
                    raise
