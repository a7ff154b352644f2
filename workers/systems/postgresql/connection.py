"""The connection to a PostgreSQL server: connecting, deadlines, texts of its errors.

When the certificates of a connection are valid is noted here, as libpq does not tell it.
"""

import contextlib
import math
import socket
from collections.abc import Iterator
from operator import attrgetter

import psycopg2
from psycopg2 import extensions

from app import asked_servers
from app.config import tls
from app.config.fields.addresses import HostPort
from app.config.targets.postgresql import PostgresSettings, explicit
from app.config.targets.postgresql import parameters as libpq_parameters
from workers.targets import sockets, tcp
from workers.targets.base import TargetUnavailable
from workers.targets.sockets import MAX_ANSWER_BYTES, AnswerTooLong
from workers.targets.tls import SeenCertificates, seen_with

_PORT = "5432"
_SOCKET_FOLDER = "/var/run/postgresql"  # where libpq looks without a host


def parameters(settings: PostgresSettings) -> dict[str, str]:
    """Return libpq's parameters from the settings, with values for missing ones; libpq takes none from its host."""
    given = libpq_parameters(settings.dsn)
    seconds = math.ceil(settings.timeout)
    defaults = {
        "connect_timeout": str(max(2, seconds)),  # libpq treats 1 as 2
        "tcp_user_timeout": str(seconds * 1000),
    }
    if "," in given.get("host", "") + given.get("hostaddr", ""):
        defaults["target_session_attrs"] = "read-write"  # of several servers, the one that accepts writes
    return explicit(defaults | {name: value for name, value in given.items() if value})


def addresses(settings: PostgresSettings) -> list[HostPort]:
    """Return the addresses as libpq reads them: several hosts, with one port for each or one for all."""
    options = parameters(settings)
    hosts = (options.get("hostaddr") or options.get("host") or _SOCKET_FOLDER).split(",")
    ports = (options.get("port") or "").split(",")
    ports = ports if len(ports) == len(hosts) else ports * len(hosts)
    return [
        HostPort(f"{host}/.s.PGSQL.{port}", 0) if host.startswith("/") else HostPort(host, int(port))
        for host, port in zip(hosts, (port or _PORT for port in ports), strict=False)
    ]


def connect(settings: PostgresSettings) -> extensions.connection:
    """Connect without implicit transactions: explicit statements begin and end them."""
    try:
        connection = psycopg2.connect(extensions.make_dsn(**_checked(parameters(settings))))
    except psycopg2.Error as error:
        raise TargetUnavailable(f"PostgreSQL: {reason(error)}") from error
    except UnicodeDecodeError as error:  # of libpq's words, with what the server has sent
        raise TargetUnavailable("PostgreSQL: the server is not PostgreSQL") from error
    connection.autocommit = True
    note_certificates(settings, connection)
    return connection


def _checked(values: dict[str, str]) -> dict[str, str]:
    """Return libpq's parameters with the addresses of its hosts, while link-local ones are refused: it would ask again.

    Raises `TargetUnavailable`.
    """
    if not tcp.refuses_link_local():
        return values
    names = (values.get("host") or values.get("hostaddr") or "").split(",")
    hosts = (values.get("hostaddr") or values.get("host") or "").split(",")
    ports = (values.get("port") or _PORT).split(",")
    ports = ports if len(ports) == len(hosts) else ports * len(hosts)
    chosen: list[tuple[str, str, str]] = []
    try:
        for name, host, port in zip(names, hosts, ports, strict=True):
            infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            found = dict.fromkeys(str(entry[4][0]) for entry in infos)
            chosen += [(name, tcp.not_link_local(address), port) for address in found]
    except OSError as error:
        raise TargetUnavailable(f"PostgreSQL: {error}") from error
    lists = zip(("host", "hostaddr", "port"), zip(*chosen, strict=True), strict=True)
    return values | {name: ",".join(texts) for name, texts in lists}


def reason(error: psycopg2.Error) -> str:
    """Return the server's message with its code in one line, without the statement."""
    diagnosis = error.diag
    if not diagnosis.message_primary:
        return " ".join(str(error).split()) or type(error).__name__
    parts = [diagnosis.message_primary, diagnosis.message_detail, diagnosis.message_hint]
    return f"{'; '.join(part for part in parts if part)} (SQLSTATE {error.pgcode})"


def is_stale(connection: extensions.connection) -> bool:
    """Return whether the server sent unrequested data: it has closed the connection, or is about to."""
    return bool(connection.closed) or sockets.has_spoken(connection.fileno())


@contextlib.contextmanager
def deadline(connection: extensions.connection, timeout: float) -> Iterator[None]:
    """End the block with an `OperationalError` if the server does not even keep its own time limit, or floods us.

    libpq waits forever for a server that is frozen or vanished silently, and reads an answer to its end; cutting the
    socket below it ends both.
    """
    with sockets.BoundedDeadline(timeout, connection.fileno(), MAX_ANSWER_BYTES) as limit:
        try:
            yield
        except psycopg2.Error as error:
            if limit.is_flooded:
                raise psycopg2.OperationalError(str(AnswerTooLong(MAX_ANSWER_BYTES))) from error
            raise


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
    seen.note(name, asked_servers.ask_certificate(address, port, name=name, begin=asked_servers.begin_postgresql))
