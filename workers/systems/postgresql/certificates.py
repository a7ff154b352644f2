"""Note until when the certificates of a connection are valid, which libpq does not tell."""

import contextlib
import socket
import struct
import time

from psycopg2 import extensions

from app.config import tls
from app.config.targets.postgresql import PostgresSettings
from app.config.targets.postgresql_dsn import parameters as libpq_parameters
from workers.targets.certificates import SeenCertificates, seen_with

_SSL_REQUEST = struct.pack("!ii", 8, 80_877_103)  # the first message of a client that wants TLS
_VERIFIES = ("verify-ca", "verify-full")
_SECONDS = 3.0  # for the whole question


def note_certificates(settings: PostgresSettings, connection: extensions.connection) -> None:
    """Note the server's certificate, if it is verified, the client's and the authority's.

    The server is asked for its own by a second connection, which ends before a login, to the very address of the first.
    """
    seen, given = seen_with(settings), libpq_parameters(settings.dsn)
    if not connection.info.ssl_in_use:
        return
    # What cannot be read or asked stays unknown: the connection itself works.
    with contextlib.suppress(Exception):
        if given.get("sslcert"):
            seen.note("sslcert", tls.ends_of_file(given["sslcert"])[0])
    if given.get("sslmode") in _VERIFIES:
        with contextlib.suppress(Exception):
            if given.get("sslrootcert"):
                seen.note("sslrootcert", max(tls.ends_of_file(given["sslrootcert"])))
        with contextlib.suppress(Exception):
            _ask(connection, seen)


def _ask(connection: extensions.connection, seen: SeenCertificates) -> None:
    with socket.socket(fileno=socket.dup(connection.fileno())) as first:
        address = first.getpeername()[:2]
    until = time.monotonic() + _SECONDS
    with socket.create_connection(address, timeout=_SECONDS) as wire:
        wire.settimeout(_left(until))
        wire.sendall(_SSL_REQUEST)
        wire.settimeout(_left(until))
        if wire.recv(1) == b"S":
            wire.settimeout(_left(until))  # for the handshake as a whole
            with tls.context(skip_verify=True).wrap_socket(wire) as secure:
                seen.note(connection.info.host, tls.end_of(secure.getpeercert(binary_form=True) or b""))


def _left(until: float) -> float:
    if (left := until - time.monotonic()) <= 0:
        raise TimeoutError
    return left
