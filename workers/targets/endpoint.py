"""One address that a target connects to, and how to check its name resolution, connection and TLS.

These checks need no target protocol. Where TLS begins within a protocol (NATS, NSQ, PostgreSQL, MySQL) it is part of
logging in, and only the adapter can check it.
"""

import socket
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
