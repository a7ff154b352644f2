"""Build the requests of a webhook (body, headers, signature: reference §4.2), and decide what their answers mean.

The table of outcomes is in `workers.systems.webhook.target`.
"""

import hashlib
import importlib.metadata
import time
from binascii import Error as Base64Error
from collections.abc import Sequence
from datetime import UTC, datetime

from standardwebhooks.webhooks import EmptyWebhookSecretError, Webhook
from urllib3 import BaseHTTPResponse
from urllib3.exceptions import ConnectTimeoutError, HTTPError, ProtocolError, ProxyError
from urllib3.exceptions import SSLError as TLSError
from urllib3.util import SKIP_HEADER, parse_url

from app.config.errors import REDACTED
from app.config.targets.webhook import WebhookSettings
from app.events.model import Event, trace_fields
from workers.delivery.outcomes import DELIVERED, Failed, Outcome, Rejected, Unavailable
from workers.targets import messages
from workers.targets.base import TargetUnavailable, call_trace
from workers.targets.http_pool import HttpPool, PrivateAddressError, basic_auth, describe_http_error, retry_after
from workers.targets.messages import HTTP, message_format

USER_AGENT = f"Bucketwire/{importlib.metadata.version('bucketwire')}"


class RequestFormat:
    """Bodies and headers by a target's settings. Raises `TargetUnavailable` for a signing secret that is no base64."""

    def __init__(self, settings: WebhookSettings) -> None:
        self._format = message_format(settings, HTTP)
        # A receiver of batches gets nothing else: one event, too, is a batch then.
        self._is_batch = settings.payload == "cloudevents" and settings.events_per_post > 1
        self._headers = _headers(settings, messages.BATCH if self._is_batch else self._format.content_type)
        self._templates = [(name, value) for name, value in settings.headers if value.fixed is None]
        self._path = settings.path
        self._signers = _signers(settings.signing_secrets)

    def target(self, endpoint: str, event: Event) -> str:
        """Return the request target for an event. Raises `BadValue` if the template for the path gives no path."""
        if not self._path:
            return endpoint
        path, mark, query = endpoint.partition("?")
        return path.rstrip("/") + self._path.of(event) + mark + query

    def build(self, events: Sequence[Event]) -> tuple[bytes, dict[str, str]]:
        """Return the body and the headers of the request for these events.

        Raises `BadValue` if a template gives no valid header.
        """
        body = self._body(events)
        headers = dict(self._headers)
        for name, template in self._templates:
            headers[name] = template.of(events[0])
        if trace := _trace(events):
            headers |= trace_fields(trace)
        if self._format.headers and not self._is_batch:
            headers |= self._format.headers(events[0])
        if self._signers:
            headers |= self._signature(_id(events), body)
        return body.encode(), headers

    def _body(self, events: Sequence[Event]) -> str:
        """Return a batch, one event's message, or of several MinIO messages what AWS sends.

        No single name and key is true of several events. A receiver that reads only the top-level name and key then
        fails and gets the events one by one; otherwise it would miss all but one.
        """
        if self._is_batch:
            return messages.batch(events)
        if len(events) == 1:
            return self._format.body(events[0])
        return f'{{"Records":[{",".join([event.record for event in events])}]}}'

    def _signature(self, id_: str, body: str) -> dict[str, str]:
        """Sign (Standard Webhooks) with every secret, so that a receiver may have the old or the new one."""
        now = datetime.now(UTC)
        return {
            "webhook-id": id_,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": " ".join(signer.sign(id_, now, body) for signer in self._signers),
        }


def authorization(token: str) -> str | None:
    """Return the header for an `auth_token`: scheme and token unchanged, a lone token as bearer, else none (§4.2)."""
    words = token.split()
    if len(words) == 2:
        return token.strip()
    return f"Bearer {words[0]}" if len(words) == 1 else None


def _id(events: Sequence[Event]) -> str:
    """Return the event's id; for several events an id that is the same whenever the same events go together."""
    if len(events) == 1:
        return events[0].id
    return hashlib.sha256("".join([event.id for event in events]).encode()).hexdigest()[:32]


def _trace(events: Sequence[Event]) -> str:
    """Return the trace context of a request: that of its event; for several that of the call, or the one they share."""
    trace = events[0].trace
    if len(events) > 1 and (of_call := call_trace()):
        return of_call
    return trace if not trace or all(event.trace == trace for event in events) else ""


def _headers(settings: WebhookSettings, content_type: str) -> dict[str, str]:
    """Return the headers of every request; `headers` of the settings replace those of the same name."""
    # MinIO's requests have no Accept-Encoding header; urllib3 would add `identity`.
    headers = {"Content-Type": content_type, "User-Agent": USER_AGENT, "Accept-Encoding": SKIP_HEADER}
    login = parse_url(settings.endpoint).auth
    if value := authorization(settings.auth_token):
        headers["Authorization"] = value
    elif login:
        headers["Authorization"] = basic_auth(login)
    replaced = {name.lower() for name, _ in settings.headers}
    return {name: value for name, value in headers.items() if name.lower() not in replaced} | dict(settings.headers)


def _signers(secrets: Sequence[str]) -> list[Webhook]:
    signers = []
    for number, secret in enumerate(secrets, 1):
        try:
            signers.append(Webhook(secret))
        except (Base64Error, ValueError, EmptyWebhookSecretError) as error:
            raise TargetUnavailable(
                f"signing_secret: number {number} is not base64 text, with or without whsec_ before it"
            ) from error
    return signers


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
