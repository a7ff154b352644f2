"""Webhook: each event, or `events_per_post` together, is a POST to an HTTP endpoint (reference §4.2).

Delivered means: the endpoint answered with a status from 200 to 299. Redirects are never followed.

| answer                                                    | outcome                                              |
|-----------------------------------------------------------|------------------------------------------------------|
| 2xx                                                       | Delivered                                            |
| 410                                                       | Unavailable, and the target is paused                |
| 401, 403, 407, 429, 502, 503, 504                         | Unavailable, with Retry-After; nothing more is sent  |
| 3xx, 404, 405, 408, other 5xx, no answer in time          | Failed                                               |
| third consecutive request without an answer in time       | Failed, and Unavailable for all that would follow    |
| other 4xx                                                 | Rejected, with the first bytes of the answer         |
| not reached: name, connection, TLS, private address       | Unavailable                                          |
| connection lost before the answer                         | Failed if the endpoint still listens, else Unavailable |

The Failed or Rejected of a request with several events does not apply to any single event: each is sent again alone.
"""

import hashlib
import importlib.metadata
import time
from binascii import Error as Base64Error
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import UTC, datetime

from standardwebhooks.webhooks import EmptyWebhookSecretError, Webhook
from urllib3 import BaseHTTPResponse, Timeout
from urllib3.exceptions import ConnectTimeoutError, HTTPError, InvalidHeader, ProtocolError, ProxyError
from urllib3.exceptions import SSLError as TLSError
from urllib3.exceptions import TimeoutError as AnswerTimeoutError
from urllib3.util import SKIP_HEADER, Retry, parse_url

from app.config.targets.webhook import WebhookSettings
from app.events.model import Event
from app.events.trace import fields
from workers.delivery.outcomes import DELIVERED, Failed, Outcome, Rejected, Unavailable
from workers.targets import tls
from workers.targets.base import NO_LEASE, LeaseCheck, TargetUnavailable
from workers.targets.batch import Batch
from workers.targets.http_pool import HttpPool, PrivateAddressError, basic_auth, http_pool
from workers.targets.payloads import log

USER_AGENT = f"Bucketwire/{importlib.metadata.version('bucketwire')}"
MOST_THREADS = 64

_BUSY = frozenset({429, 502, 503, 504})
_LOGIN = frozenset({401, 403, 407})
_PASSING = frozenset({404, 405, 408})
_HANG_UP = 0.3
_UNANSWERED = 3
_ANSWER_LIMIT = 64 * 1024
_ANSWER_SHOWN = 500


@dataclass
class _Round:
    """One call of `deliver`; `unanswered` counts consecutive requests without an answer in time.

    `hangs` is the outcome of unsent events, once there are too many such requests.
    """

    wire: HttpPool
    batch: Batch
    unanswered: int = 0
    hangs: Unavailable | None = None


class WebhookTarget:
    """One endpoint: a pool of kept-alive connections and, if several requests may be open, a pool of threads."""

    def __init__(self, settings: WebhookSettings) -> None:
        self._settings = settings
        self._wire: HttpPool | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._stamp: object = None
        self._headers: dict[str, str] = {}
        self._signers: list[Webhook] = []
        self._timeout = Timeout(connect=settings.timeout, read=settings.read_timeout)

    def open(self) -> None:
        """Check that the endpoint accepts a TCP, and for https a TLS, connection; send no request (as MinIO: §4.2)."""
        self._connect()

    def deliver(self, events: Sequence[Event], window: int, lease: LeaseCheck = NO_LEASE) -> Sequence[Outcome]:
        """Send one request at a time in order, or one per object in up to `window` (at most 64) threads."""
        wire = self._wire
        if wire is None or self._stamp != self._files():
            wire = self._connect()
        try:
            wire.guard_behind_proxy()
        except PrivateAddressError as error:
            raise TargetUnavailable(f"{wire.where}: {error}") from error
        work = _Round(wire, Batch(events, lease))
        if window == 1:
            self._send_in_order(work, range(len(events)))
        else:
            self._send_at_once(work, window)
        if work.hangs is not None:
            work.batch.settle_all(work.batch.unsettled(), work.hangs)
        return work.batch.outcomes()

    def close(self) -> None:
        """Close the connections and end the threads, which are idle between calls."""
        wire, self._wire = self._wire, None
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=True)
        if wire is not None:
            wire.close()

    def _connect(self) -> HttpPool:
        self.close()
        chosen = self._settings
        self._stamp = self._files()
        context = tls.context(
            chosen.tls_ca,
            skip_verify=chosen.tls_skip_verify,
            client_cert=chosen.client_cert,
            client_key=chosen.client_key,
        )
        self._headers = _headers(chosen)
        self._signers = _signers(chosen.signing_secrets)
        wire = http_pool(chosen.endpoint, context, guarded=not chosen.allow_private, connections=MOST_THREADS)
        try:
            wire.check(chosen.timeout)
        except HTTPError as error:
            wire.close()
            raise TargetUnavailable(f"{wire.where}: {_words(error)}") from error
        self._wire = wire
        return wire

    def _send_at_once(self, work: _Round, window: int) -> None:
        events = work.batch.events
        chains: dict[str, list[int]] = {}
        for index, event in enumerate(events):
            chains.setdefault(event.path, []).append(index)
        waiting = deque(chains.values())

        def take_chains() -> None:
            while waiting:
                chosen: list[int] = []
                while len(chosen) < self._settings.events_per_post:
                    try:
                        chosen += waiting.popleft()
                    except IndexError:  # another thread was faster
                        break
                self._send_in_order(work, sorted(chosen))

        if self._threads is None:
            self._threads = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="webhook")
        threads = min(window, MOST_THREADS, len(chains), -(-len(events) // self._settings.events_per_post))
        running: list[Future[None]] = []
        try:
            for _ in range(threads):
                running.append(self._threads.submit(take_chains))  # noqa: PERF401 (an interruption must find them)
            for each in running:
                each.result()
        finally:
            # No request may outlive the call, even if this thread is interrupted.
            work.batch.stop()
            wait(running)

    def _send_in_order(self, work: _Round, indexes: Sequence[int]) -> None:
        many = self._settings.events_per_post
        for start in range(0, len(indexes), many):
            some = work.batch.begin(indexes[start : start + many])
            if not some or self._is_settled(work, some):
                continue
            for index in some:  # sending each event alone finds the one to blame
                if alone := work.batch.begin([index]):
                    self._is_settled(work, alone)

    def _is_settled(self, work: _Round, indexes: Sequence[int]) -> bool:
        """Return whether one request settled them all; not so if several are refused where one may be to blame."""
        outcome = self._send(work, [work.batch.events[index] for index in indexes])
        if len(indexes) > 1 and isinstance(outcome, Failed | Rejected):
            return False
        work.batch.settle_all(indexes, outcome)
        return True

    def _send(self, work: _Round, events: Sequence[Event]) -> Outcome:
        wire = work.wire
        body = _body(events)
        headers = self._headers
        if trace := _trace(events):
            headers = {**headers, **dict(fields(trace))}
        if self._signers:
            headers = {**headers, **self._signature(_id(events), body)}
        try:
            response = wire.pool.urlopen(
                "POST",
                wire.target,
                body=body.encode(),
                headers=headers,
                retries=False,
                redirect=False,
                assert_same_host=False,
                timeout=self._timeout,
                preload_content=False,
                decode_content=False,
            )
        except AnswerTimeoutError as error:
            if not isinstance(error, ConnectTimeoutError):
                return self._too_late(work)
            return self._unanswered(wire, error)
        except HTTPError as error:
            return self._unanswered(wire, error)
        work.unanswered = 0
        answer = _read(response, self._settings.timeout)
        return DELIVERED if 200 <= response.status <= 299 else self._refusal(wire, response, answer)

    def _signature(self, id_: str, body: str) -> dict[str, str]:
        """Sign (Standard Webhooks) with every secret, so that a receiver may have the old or the new one."""
        now = datetime.now(UTC)
        return {
            "webhook-id": id_,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": " ".join(signer.sign(id_, now, body) for signer in self._signers),
        }

    def _too_late(self, work: _Round) -> Outcome:
        """Return the outcome of a timeout: one slow event fails; several in a row mean that the endpoint hangs."""
        work.unanswered += 1
        reason = f"{work.wire.where}: no answer within {self._settings.read_timeout} s"
        if work.unanswered >= _UNANSWERED:
            hangs = f"not tried: {reason}, {work.unanswered} times in a row"
            work.hangs = Unavailable(hangs, unreachable=True)
            work.batch.stop()
        return Failed(reason)

    def _unanswered(self, wire: HttpPool, error: HTTPError) -> Outcome:
        reason = f"{wire.where}: {_words(error)}"
        if isinstance(error, ConnectTimeoutError | TLSError | ProxyError | PrivateAddressError):
            # NewConnectionError and NameResolutionError are subclasses of ConnectTimeoutError.
            return Unavailable(reason, unreachable=True)
        if isinstance(error, ProtocolError):
            try:
                wire.check(self._settings.timeout, patience=_HANG_UP)
            except HTTPError as second:
                return Unavailable(f"{reason}; then {_words(second)}")
        return Failed(reason)

    def _refusal(self, wire: HttpPool, response: BaseHTTPResponse, answer: bytes) -> Outcome:
        status = response.status
        reason = f"{wire.where} answered {status} {response.reason or ''}".rstrip()
        later = _retry_after(response)
        if status == 410:
            return Unavailable(f"{reason}: the endpoint is gone for good", pause=True)
        if status in _BUSY:
            return Unavailable(reason, later)
        if status in _LOGIN:
            return Unavailable(f"{reason}: check auth_token and the client certificate", later)
        if 300 <= status <= 399:
            place = response.headers.get("Location")
            return Failed(f"{reason}: redirects are not followed; it names {place!r}: set that as the endpoint")
        said = self._shown(answer)
        reason = f"{reason}: {said}" if said else reason
        if status >= 500 or status in _PASSING:
            return Failed(reason, later)
        return Rejected(reason)

    def _shown(self, answer: bytes) -> str:
        """Return the answer's beginning on one line, redacted: an endpoint may echo the request and its secrets."""
        said = " ".join(answer[: 4 * _ANSWER_SHOWN].decode(errors="replace").split())
        said = "".join(letter if letter.isprintable() else "\ufffd" for letter in said)
        words = [*self._settings.auth_token.split(), *self._settings.signing_secrets]
        for secret in sorted(words, key=len, reverse=True):
            if len(secret) > 3:
                said = said.replace(secret, "*redacted*")
        return said.encode()[:_ANSWER_SHOWN].decode(errors="ignore")

    def _files(self) -> object:
        chosen = self._settings
        return tls.stamp(chosen.tls_ca, chosen.client_cert, chosen.client_key)


def authorization(token: str) -> str | None:
    """Return the header for an `auth_token`: scheme and token unchanged, a lone token as bearer, else none (§4.2)."""
    words = token.split()
    if len(words) == 2:
        return token.strip()
    return f"Bearer {words[0]}" if len(words) == 1 else None


def _body(events: Sequence[Event]) -> str:
    """Return MinIO's envelope of one event; of several what AWS sends, as no single name and key is true of all.

    A receiver that reads only the top-level name and key then fails and gets the events one by one; otherwise it would
    miss all but one.
    """
    if len(events) == 1:
        return log(events[0])
    return f'{{"Records":[{",".join([event.record for event in events])}]}}'


def _id(events: Sequence[Event]) -> str:
    """Return the event's id; for several events an id that is the same whenever the same events go together."""
    if len(events) == 1:
        return events[0].id
    return hashlib.sha256("".join([event.id for event in events]).encode()).hexdigest()[:32]


def _trace(events: Sequence[Event]) -> str:
    """Return the trace context of a request: that of its event, or the one that all of its events share."""
    trace = events[0].trace
    return trace if not trace or all(event.trace == trace for event in events) else ""


def _headers(settings: WebhookSettings) -> dict[str, str]:
    # MinIO's requests have no Accept-Encoding header; urllib3 would add `identity`.
    headers = {"Content-Type": "application/json", "User-Agent": USER_AGENT, "Accept-Encoding": SKIP_HEADER}
    login = parse_url(settings.endpoint).auth
    if given := authorization(settings.auth_token):
        headers["Authorization"] = given
    elif login:
        headers["Authorization"] = basic_auth(login)
    return headers


def _signers(secrets: Sequence[str]) -> list[Webhook]:
    made = []
    for number, secret in enumerate(secrets, 1):
        try:
            made.append(Webhook(secret))
        except (Base64Error, ValueError, EmptyWebhookSecretError) as error:
            raise TargetUnavailable(
                f"signing_secret: number {number} is not base64 text, with or without whsec_ before it"
            ) from error
    return made


def _read(response: BaseHTTPResponse, patience: float) -> bytes:
    """Read as much of the answer's body as is useful; the connection is kept only if the body was read completely.

    The status has already decided the outcome, so an incomplete body changes nothing.
    """
    answer = bytearray()
    deadline = time.monotonic() + patience
    try:
        while len(answer) < _ANSWER_LIMIT and time.monotonic() < deadline:
            piece = response.read1(_ANSWER_LIMIT - len(answer))
            if not piece:
                response.release_conn()
                return bytes(answer)
            answer += piece
    except HTTPError:
        pass
    response.close()
    return bytes(answer)


def _retry_after(response: BaseHTTPResponse) -> float | None:
    try:
        return Retry().get_retry_after(response)
    except InvalidHeader:
        return None


def _words(error: HTTPError) -> str:
    """Return the error as text, without urllib3's object names."""
    words = str(error.args[-1] if error.args else error) or type(error).__name__
    return words.rpartition(": Failed to establish a new connection: ")[2] or words
