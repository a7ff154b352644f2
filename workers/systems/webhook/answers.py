"""Read an endpoint's answer and decide the outcome; the table is in `workers.systems.webhook.target`."""

import time
from collections.abc import Sequence

from urllib3 import BaseHTTPResponse
from urllib3.exceptions import ConnectTimeoutError, HTTPError, ProtocolError, ProxyError
from urllib3.exceptions import SSLError as TLSError

from app.config.errors import REDACTED
from workers.delivery.outcomes import DELIVERED, Failed, Outcome, Rejected, Unavailable
from workers.targets.http_connection import PrivateAddressError
from workers.targets.http_pool import HttpPool, describe_http_error, retry_after

_BUSY = frozenset({429, 502, 503, 504})
_LOGIN = frozenset({401, 403, 407})
_ABOUT_THE_CONNECTION = frozenset({421, 426, 428, 511})  # its protocol, its headers, its network: as for every event
_ABOUT_THE_PATH = frozenset({403, 410})
_TRANSIENT = frozenset({404, 405, 408})
_MAX_READ_BYTES = 64 * 1024
_MAX_SHOWN_BYTES = 500
_HANG_UP_SECONDS = 0.3  # seconds in which an endpoint without a server behind it closes a new connection


def read_answer(response: BaseHTTPResponse, patience: float) -> bytes:
    """Read as much of the answer's body as is useful; the connection is kept only if the body was read completely.

    The status has already decided the outcome, so an incomplete body changes nothing.
    """
    answer = bytearray()
    deadline = time.monotonic() + patience
    try:
        while len(answer) < _MAX_READ_BYTES and time.monotonic() < deadline:
            piece = response.read1(_MAX_READ_BYTES - len(answer))
            if not piece:
                response.release_conn()
                return bytes(answer)
            answer += piece
    except HTTPError:
        pass
    response.close()
    return bytes(answer)


def outcome_of_answer(
    where: str, response: BaseHTTPResponse, answer: bytes, secrets: Sequence[str], *, of_template: bool = False
) -> Outcome:
    """Return the outcome of a request by the status of its answer.

    `secrets`, the longest first, are not in its reason. With `of_template` the path is this event's: that it is refused
    says nothing of the others.
    """
    if 200 <= response.status <= 299:
        return DELIVERED
    if of_template and response.status in _ABOUT_THE_PATH:
        return Failed(f"{where} answered {response.status} {response.reason or ''} for the path of this event")
    return _outcome_of_refusal(where, response, _show(answer, secrets))


def _outcome_of_refusal(where: str, response: BaseHTTPResponse, shown: str) -> Outcome:
    status = response.status
    reason = f"{where} answered {status} {response.reason or ''}".rstrip()
    later = retry_after(response.headers)
    if status == 410:
        return Unavailable(f"{reason}: the endpoint is gone for good", pause=True)
    if status in _BUSY or status in _ABOUT_THE_CONNECTION:
        return Unavailable(reason, later)
    if status in _LOGIN:
        return Unavailable(f"{reason}: check auth_token and the client certificate", later)
    if 300 <= status <= 399:
        location = response.headers.get("Location")
        return Failed(f"{reason}: redirects are not followed; it names {location!r}: set that as the endpoint")
    reason = f"{reason}: {shown}" if shown else reason
    if status >= 500 or status in _TRANSIENT:
        return Failed(reason, later)
    return Rejected(reason)


def outcome_of_error(http: HttpPool, error: HTTPError, timeout: float) -> Outcome:
    """Return the outcome of a request without an answer; connects once more to find out whether the endpoint listens.

    `timeout` is that of the connection, in seconds. An answer that did not arrive in time is not decided here.
    """
    reason = f"{http.where}: {describe_http_error(error)}"
    if isinstance(error, ConnectTimeoutError | TLSError | ProxyError | PrivateAddressError):
        # NewConnectionError and NameResolutionError are subclasses of ConnectTimeoutError.
        return Unavailable(reason, unreachable=True)
    if isinstance(error, ProtocolError):
        try:
            http.check(timeout, patience=_HANG_UP_SECONDS)
        except HTTPError as second:
            return Unavailable(f"{reason}; then {describe_http_error(second)}")
    return Failed(reason)


def _show(answer: bytes, secrets: Sequence[str]) -> str:
    """Return the answer's beginning on one line, redacted: an endpoint may echo the request and its secrets."""
    text = " ".join(answer[: 4 * _MAX_SHOWN_BYTES].decode(errors="replace").split())
    text = "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
    for secret in secrets:  # here already: a secret that is cut off would not be recognised later
        if len(secret) > 3:
            text = text.replace(secret, REDACTED)
    return text.encode()[:_MAX_SHOWN_BYTES].decode(errors="ignore")
