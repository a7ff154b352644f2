"""Ask an API process at its address whether it answers, and say why not."""

import http.client
import ssl
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
_LATE = "timed out"
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
    if request.is_late or problem.endswith(_LATE):
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
        return _LATE
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
