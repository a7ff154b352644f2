"""Note when the certificates of a connection are valid, which libpq does not tell."""

import contextlib
import socket
from operator import attrgetter

from psycopg2 import extensions

from app import asked_certificate
from app.config import tls
from app.config.targets.postgresql import PostgresSettings
from app.config.targets.postgresql_dsn import parameters as libpq_parameters
from workers.targets.certificates import SeenCertificates, seen_with

_VERIFIES = ("verify-ca", "verify-full")


def note_certificates(settings: PostgresSettings, connection: extensions.connection) -> None:
    """Note the server's certificate, if it is verified, the client's and the authority's.

    The server is asked for its own by a second connection, to the very address of the first.
    """
    seen, given = seen_with(settings), libpq_parameters(settings.dsn)
    if not connection.info.ssl_in_use:
        return
    # What cannot be read or asked stays unknown: the connection itself works.
    with contextlib.suppress(Exception):
        if given.get("sslcert"):
            seen.note("sslcert", tls.validities_of_file(given["sslcert"])[0])
    if given.get("sslmode") in _VERIFIES:
        with contextlib.suppress(Exception):
            if given.get("sslrootcert"):
                seen.note("sslrootcert", max(tls.validities_of_file(given["sslrootcert"]), key=attrgetter("ends_at")))
        with contextlib.suppress(Exception):
            _ask(connection, seen)


def _ask(connection: extensions.connection, seen: SeenCertificates) -> None:
    with socket.socket(fileno=socket.dup(connection.fileno())) as first:
        address, port = first.getpeername()[:2]
    name = connection.info.host
    seen.note(name, asked_certificate.ask(address, port, name=name, begin=asked_certificate.begin_postgresql))
