"""Note until when the certificates of a connection are valid, which libpq does not tell."""

import contextlib
import socket
import struct

from psycopg2 import extensions

from app.config import tls
from app.config.targets.postgresql import PostgresSettings
from app.config.targets.postgresql_dsn import parameters as libpq_parameters
from workers.targets.certificates import SeenCertificates, seen_with

_SSL_REQUEST = struct.pack("!ii", 8, 80_877_103)  # the first message of a client that wants TLS
_VERIFIES = ("verify-ca", "verify-full")
_SECONDS = 3.0  # for the question alone


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
    with contextlib.suppress(Exception):
        if given.get("sslmode") in _VERIFIES:
            _ask(connection, seen)
            if given.get("sslrootcert"):
                seen.note("sslrootcert", max(tls.ends_of_file(given["sslrootcert"])))


def _ask(connection: extensions.connection, seen: SeenCertificates) -> None:
    with socket.socket(fileno=socket.dup(connection.fileno())) as first:
        address = first.getpeername()[:2]
    with socket.create_connection(address, timeout=_SECONDS) as wire:
        wire.sendall(_SSL_REQUEST)
        if wire.recv(1) == b"S":
            with tls.context(skip_verify=True).wrap_socket(wire) as secure:
                seen.note(connection.info.host, tls.end_of(secure.getpeercert(binary_form=True) or b""))
