"""Webhook: each event, or `events_per_post` together, is a POST to an HTTP endpoint (reference §4.2).

Delivered means: the endpoint answered with a status from 200 to 299. Redirects are never followed.

| answer                                                    | outcome                                              |
|-----------------------------------------------------------|------------------------------------------------------|
| 2xx                                                       | Delivered                                            |
| 403, 410 where the path is a template                     | Failed                                               |
| 410                                                       | Unavailable, and the target is paused                |
| 401, 403, 407, 429, 502, 503, 504                         | Unavailable, with Retry-After; nothing more is sent  |
| no answer in time                                         | Unavailable; nothing more is sent                    |
| 3xx, 404, 405, 408, other 5xx                             | Failed                                               |
| other 4xx                                                 | Rejected, with the first bytes of the answer         |
| not reached: name, connection, TLS, private address       | Unavailable                                          |
| connection lost before the answer                         | Failed if the endpoint still listens, else Unavailable |

The Failed or Rejected of a request with several events does not apply to any single event: each is sent again alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from urllib3 import BaseHTTPResponse, Timeout
from urllib3.exceptions import ConnectTimeoutError, HTTPError
from urllib3.exceptions import TimeoutError as HTTPTimeoutError
from urllib3.util import SKIP_HEADER

from app.config.errors import BadValue
from app.config.targets.webhook import WebhookSettings
from app.events.model import Event
from workers.delivery.outcomes import Exchange, Failed, Outcome, Rejected, Unavailable
from workers.systems.webhook.requests import RequestFormat, outcome_of_answer, outcome_of_error, read_answer
from workers.targets import tls
from workers.targets.base import NO_LEASE, LeaseCheck, TargetUnavailable
from workers.targets.batch import MAX_THREADS, Batch, RequestThreads
from workers.targets.http_pool import (
    HttpPool,
    PrivateAddressError,
    describe_http_error,
    http_endpoint,
    http_message,
    http_pool,
)
from workers.targets.sockets import Deadline
from workers.targets.tcp import Endpoint


@dataclass(frozen=True)
class _Endpoint:
    """An open endpoint, and the state of the certificate files with which it was opened."""

    http: HttpPool
    requests: RequestFormat
    stamp: object


@dataclass(frozen=True)
class _Call:
    """One call of `deliver`."""

    endpoint: _Endpoint
    batch: Batch


class WebhookTarget:
    """One endpoint: a pool of kept-alive connections and, if several requests may be open, a pool of threads."""

    def __init__(self, settings: WebhookSettings) -> None:
        self._settings = settings
        self._endpoint: _Endpoint | None = None
        self._threads = RequestThreads("webhook")
        self._timeout = Timeout(connect=settings.timeout, read=settings.read_timeout)
        self._secrets = sorted(set(settings.secrets()), key=len, reverse=True)

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the endpoint, or its proxy."""
        chosen = self._settings
        return [http_endpoint(chosen.endpoint, partial(tls.context_of, chosen), guarded=not chosen.allow_private)]

    def open(self) -> None:
        """Check that the endpoint accepts a TCP, and for https a TLS, connection; send no request (as MinIO: §4.2)."""
        self._connect()

    def deliver(self, events: Sequence[Event], window: int, lease: LeaseCheck = NO_LEASE) -> Sequence[Outcome]:
        """Send one request at a time in order, or one per object in up to `window` (at most 64) threads."""
        endpoint = self._endpoint
        if endpoint is None or endpoint.stamp != tls.stamp_of(self._settings):
            endpoint = self._connect()
        try:
            endpoint.http.guard_behind_proxy()
        except PrivateAddressError as error:
            raise TargetUnavailable(f"{endpoint.http.where}: {error}") from error
        call = _Call(endpoint, Batch(events, lease))
        if window == 1:
            self._send_in_order(call, range(len(events)))
        else:
            send = partial(self._send_in_order, call)
            self._threads.run(call.batch, window, self._settings.events_per_post, send)
        return call.batch.outcomes()

    def close(self) -> None:
        """Close the connections and end the threads, which are idle between calls."""
        endpoint, self._endpoint = self._endpoint, None
        self._threads.close()
        if endpoint is not None:
            endpoint.http.close()

    def _connect(self) -> _Endpoint:
        self.close()
        chosen = self._settings
        stamp = tls.stamp_of(self._settings)
        context = partial(tls.context_of, chosen)
        requests = RequestFormat(chosen)
        http = http_pool(chosen.endpoint, context, guarded=not chosen.allow_private, connections=MAX_THREADS)
        try:
            http.check(chosen.timeout)
        except HTTPError as error:
            http.close()
            raise TargetUnavailable(f"{http.where}: {describe_http_error(error)}") from error
        self._endpoint = _Endpoint(http, requests, stamp)
        return self._endpoint

    def _send_in_order(self, call: _Call, indexes: Sequence[int]) -> None:
        many = self._settings.events_per_post
        for start in range(0, len(indexes), many):
            some = call.batch.begin(indexes[start : start + many])
            if not some or self._is_settled(call, some):
                continue
            for index in some:  # sending each event alone finds the one to blame
                if alone := call.batch.begin([index]):
                    self._is_settled(call, alone)

    def _is_settled(self, call: _Call, indexes: Sequence[int]) -> bool:
        """Return whether one request settled them all; not so if several are refused where one may be to blame."""
        outcome = self._send(call, [call.batch.events[index] for index in indexes])
        if len(indexes) > 1 and isinstance(outcome, Failed | Rejected):
            return False
        call.batch.settle_all(indexes, outcome)
        return True

    def _send(self, call: _Call, events: Sequence[Event]) -> Outcome:
        http = call.endpoint.http
        try:
            body, headers = call.endpoint.requests.build(events)
            target = call.endpoint.requests.target(http.target, events[0])
        except BadValue as error:
            return Rejected(error.problem)
        keep = partial(_with_exchange, http.where, headers, body, events)
        no_answer = Unavailable(f"{http.where}: no answer within {self._settings.read_timeout:g} s")
        with Deadline(self._settings.timeout + self._settings.read_timeout) as limit:
            try:
                response = http.send("POST", target, body, headers, self._timeout, read=False)
            except HTTPError as error:
                if limit.expired or (
                    isinstance(error, HTTPTimeoutError) and not isinstance(error, ConnectTimeoutError)
                ):
                    return keep(no_answer)
                return keep(outcome_of_error(http, error, self._settings.timeout))
            if limit.expired:  # the end of the connection was taken for the end of the headers
                response.close()
                return keep(no_answer)
            answer = read_answer(response, self._settings.timeout)
        of_template = self._settings.path.fixed is None
        outcome = outcome_of_answer(http.where, response, answer, self._secrets, of_template=of_template)
        return keep(outcome, response, answer)


def _with_exchange(
    where: str,
    headers: Mapping[str, str],
    body: bytes,
    events: Sequence[Event],
    outcome: Outcome,
    response: BaseHTTPResponse | None = None,
    answer: bytes = b"",
) -> Outcome:
    """Return the outcome with the request and its answer, unless it was delivered or nothing was sent.

    The request's line has no path, as a webhook's path may be a secret. Of a request with events of several buckets
    nothing is kept: who may see one of the buckets may not see the others.
    """
    if not isinstance(outcome, Failed | Rejected | Unavailable) or len({event.bucket for event in events}) > 1:
        return outcome
    if isinstance(outcome, Unavailable) and outcome.unreachable:
        return outcome
    sent = {name: value for name, value in headers.items() if value != SKIP_HEADER}
    request = http_message(f"POST {where}", sent, body)
    if response is None:
        return replace(outcome, exchange=Exchange(request))
    line = f"HTTP {response.status} {response.reason or ''}".rstrip()
    return replace(outcome, exchange=Exchange(request, http_message(line, response.headers, answer)))
