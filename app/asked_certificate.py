"""Ask a server for its certificate, by a connection that ends before a login.

So are the certificates known of the connections whose driver does not show them, and of those that last for months.
"""

import socket
import struct
from collections.abc import Callable

from app import socket_watchdog
from app.config import tls

_SECONDS = 3.0  # for the whole question, beside what a name's further addresses take that do not answer
_POSTGRESQL_REQUEST = struct.pack("!ii", 8, 80_877_103)  # the first message of a client that wants TLS
_MYSQL_TLS = 0x0800  # capability of a server, and what a client asks for
_MYSQL_CAPABILITIES = _MYSQL_TLS | 0x0200 | 0x8000  # with the protocol of 4.1 and its login
_MYSQL_UTF8 = 45
_MYSQL_MAX_GREETING = 1 << 12  # bytes


class NoCertificate(Exception):
    """The server does not speak TLS."""


def ask(
    host: str, port: int, *, name: str = "", begin: Callable[[socket.socket], None] = lambda _: None
) -> tls.Validity:
    """Return when the certificate is valid that a server presents to a client that calls it by this name.

    `begin` is what the protocol says before its handshake. Raises `OSError`, `NoCertificate`, or what the certificate's
    library does for odd ones.
    """
    context = tls.context(skip_verify=True)
    with socket.create_connection((host, port), timeout=_SECONDS) as wire:
        question = socket_watchdog.LimitedSocket(wire, _SECONDS)
        socket_watchdog.add(question)
        try:
            begin(wire)
            secure = context.wrap_socket(wire, server_hostname=name or host, do_handshake_on_connect=False)
            question.wire = secure
            secure.do_handshake()
            certificate = secure.getpeercert(binary_form=True)
        finally:
            socket_watchdog.remove(question)
            question.wire.close()
    return tls.validity_of(certificate or b"")


def begin_postgresql(wire: socket.socket) -> None:
    """Ask a PostgreSQL server for TLS. Raises `NoCertificate`."""
    wire.sendall(_POSTGRESQL_REQUEST)
    if wire.recv(1) != b"S":
        raise NoCertificate


def begin_mysql(wire: socket.socket) -> None:
    """Ask a MySQL or MariaDB server for TLS. Raises `NoCertificate`."""
    greeting = _read(wire, int.from_bytes(_read(wire, 4)[:3], "little"))
    version_end = greeting.find(b"\0", 1)  # after the protocol's version the server's, as text
    [capabilities] = struct.unpack_from("<H", greeting, version_end + 14)  # after a thread, eight bytes of salt, and 0
    if greeting[0] != 10 or not capabilities & _MYSQL_TLS:
        raise NoCertificate
    wanted = struct.pack("<IIB23x", _MYSQL_CAPABILITIES, 1 << 24, _MYSQL_UTF8)
    wire.sendall(len(wanted).to_bytes(3, "little") + b"\1" + wanted)


def _read(wire: socket.socket, size: int) -> bytes:
    if size > _MYSQL_MAX_GREETING:
        raise NoCertificate
    found = b""
    while len(found) < size:
        more = wire.recv(size - len(found))
        if not more:
            raise ConnectionError("closed before its greeting")
        found += more
    return found
