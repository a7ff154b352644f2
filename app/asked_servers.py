"""Ask a server a question by one connection with a time limit: an API whether it answers, others for a certificate.

A certificate is asked for before a login. So are the certificates known of the connections whose driver does not show
them, and of those that last for months.
"""

import http.client
import socket
import ssl
import struct
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import orjson

from app import socket_watchdog
from app.config import tls
from app.http_answers import Answer

ALIVE, READY = "/healthz", "/readyz"
_MAX_BYTES = 65_536  # of an answer
_MAX_REASON_CHARACTERS = 300
_TIMED_OUT = "timed out"
_NO_PROBLEM = frozenset({"drain", "beat", "process"})  # checks of `/readyz` about others, and that it ends in order


class _Request:
    """A request of one connection, which is cut when its time is over."""

    def __init__(self, connection: http.client.HTTPConnection, seconds: float) -> None:
        self.ends = time.monotonic() + seconds
        self.is_late = False
        self._connection = connection

    def cut(self) -> None:
        """Shut the connection down, so that whoever reads from it goes on."""
        self.is_late = True
        if self._connection.sock is not None:
            socket_watchdog.shut_down(self._connection.sock.fileno())


def problem_of(
    url: str, path: str = ALIVE, *, seconds: float = 3.0, certificate: Callable[[bytes], None] = lambda _: None
) -> str:
    """Return what is wrong with the API at this URL, such as `does not answer: connection refused`; "" for nothing.

    `/readyz` also says what is wrong with what the API itself needs, such as the database. With TLS any certificate is
    accepted: the address need not be one of its names, and nothing is sent that is secret. `certificate` is called with
    it, in DER.
    """
    connection = _connection(url, seconds)
    request = _Request(connection, seconds)
    socket_watchdog.add(request)
    try:
        connection.connect()
        if isinstance(connection.sock, ssl.SSLSocket):
            certificate(connection.sock.getpeercert(binary_form=True) or b"")
        connection.request("GET", path)
        response = connection.getresponse()
        problem = _describe_status(response.status, response.read(_MAX_BYTES), path)
    except (OSError, http.client.HTTPException, ValueError) as error:
        problem = f"does not answer: {_describe_error(error)}"
    finally:
        socket_watchdog.remove(request)
        connection.close()
    if request.is_late or problem.endswith(_TIMED_OUT):
        problem = f"does not answer: no answer within {seconds:g} s"
    return problem[:_MAX_REASON_CHARACTERS]


def _connection(url: str, seconds: float) -> http.client.HTTPConnection:
    address = urlsplit(url)
    host, port = address.hostname or "", address.port
    connection = http.client.HTTPConnection(host, port, timeout=seconds)  # ignores proxies of the environment
    if address.scheme == "https":
        context = tls.context(skip_verify=True)
        connection = http.client.HTTPSConnection(host, port, timeout=seconds, context=context)
    connection.response_class = Answer
    return connection


def _describe_error(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return _TIMED_OUT
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return str(getattr(error, "strerror", "") or error or type(error).__name__)


def _describe_status(status: int, content: bytes, path: str) -> str:
    if status == 200:
        return ""
    answered = f"answers {status} {http.client.responses.get(status, '')}".rstrip()
    try:
        answer = orjson.loads(content) if status == 503 else {}
        if path == ALIVE and answer.get("status") == "stopping":
            return ""
        checks = answer["checks"] if path == READY else {}
        wrong = {name: check.get("reason") for name, check in checks.items() if not check["ok"]}
    except (ValueError, TypeError, KeyError, AttributeError):
        return answered
    own = [f"{name}: {reason or 'not ok'}" for name, reason in wrong.items() if name not in _NO_PROBLEM]
    if own:
        return f"{answered}: {'; '.join(own)}"
    return "" if wrong else answered


_CERTIFICATE_SECONDS = 3.0  # for the whole question, beside what a name's further addresses take that do not answer
_POSTGRESQL_REQUEST = struct.pack("!ii", 8, 80_877_103)  # the first message of a client that wants TLS
_MYSQL_TLS = 0x0800  # capability of a server, and what a client asks for
_MYSQL_CAPABILITIES = _MYSQL_TLS | 0x0200 | 0x8000  # with the protocol of 4.1 and its login
_MYSQL_UTF8 = 45
_MYSQL_MAX_GREETING = 1 << 12  # bytes


class NoCertificate(Exception):
    """The server does not speak TLS."""


def ask_certificate(
    host: str, port: int, *, name: str = "", begin: Callable[[socket.socket], None] = lambda _: None
) -> tls.Validity:
    """Return when the certificate is valid that a server presents to a client that calls it by this name.

    `begin` is what the protocol says before its handshake. Raises `OSError`, `NoCertificate`, or what the certificate's
    library does for odd ones.
    """
    context = tls.context(skip_verify=True)
    with socket.create_connection((host, port), timeout=_CERTIFICATE_SECONDS) as wire:
        question = socket_watchdog.LimitedSocket(wire, _CERTIFICATE_SECONDS)
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
