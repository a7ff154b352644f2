"""What is the webhook's own: its requests, what its answers mean, how many are open at once."""

from __future__ import annotations

import base64
import contextlib
import http.client
import itertools
import logging
import os
import shutil
import signal
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from importlib.metadata import version
from pathlib import Path
from urllib.parse import unquote

import psutil
import pytest
import trustme
from standardwebhooks.webhooks import Webhook

from app.config import target_settings
from app.events.model import Event
from app.events.parsing import parse
from tests import services
from tests.contract.probes.base import LIMIT, attempt, opened
from tests.contract.probes.webhook import SECRETS, webhook
from tests.services import Answer, Receiver, Request
from tests.support import builders, cloud_events, sample_events
from workers.delivery.outcomes import (
    DELIVERED,
    NOT_ATTEMPTED,
    Exchange,
    Failed,
    HttpMessage,
    NotAttempted,
    Rejected,
    Unavailable,
)
from workers.systems.webhook.requests import authorization
from workers.targets import create, payloads
from workers.targets.base import Target, TargetUnavailable
from workers.telemetry.redaction import RedactingTarget

WINDOWS = pytest.mark.parametrize("window", [1, 100])


def one_request(receiver: Receiver, endpoint: str = "", **changes: str) -> Request:
    with opened(webhook(endpoint or receiver.url, **changes)) as target:
        assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]
    (request,) = receiver.requests()
    return request


# --- the request


def test_the_request_is_minios_but_for_the_name_of_its_sender(receiver: Receiver) -> None:
    event = sample_events.put("a")
    with opened(webhook(receiver.url + "minio/events?x=1&y=%20")) as target:
        assert receiver.requests() == []
        assert list(target.deliver([event], 1)) == [DELIVERED]
    (request,) = receiver.requests()
    assert (request.method, request.path) == ("POST", "/minio/events?x=1&y=%20")
    assert request.body == payloads.log(event).encode()
    assert request.headers == {
        "host": f"127.0.0.1:{receiver.port}",
        "content-type": "application/json",
        "content-length": str(len(request.body)),
        "user-agent": f"Bucketwire/{version('bucketwire')}",
    }


@pytest.mark.parametrize(
    ("token", "header"),
    [
        ("", None),
        ("abc", "Bearer abc"),
        ("Splunk abc", "Splunk abc"),
        ("Splunk  abc", "Splunk  abc"),
        ("one two three", None),
    ],
)
def test_a_token_becomes_the_header_that_minio_makes_of_it(receiver: Receiver, token: str, header: str | None) -> None:
    assert authorization(token) == header
    assert one_request(receiver, auth_token=token).headers.get("authorization") == header


def test_a_login_in_the_url_is_sent_as_basic_unless_there_is_a_token(receiver: Receiver) -> None:
    endpoint = receiver.url.replace("//", "//us%20er:pa%3Ass@")
    basic = f"Basic {base64.b64encode(b'us er:pa:ss').decode()}"
    assert one_request(receiver, endpoint=endpoint).headers["authorization"] == basic
    receiver.forget()
    assert one_request(receiver, endpoint=endpoint, auth_token="t").headers["authorization"] == "Bearer t"


def test_a_signed_request_is_verified_with_either_secret_and_keeps_its_id(receiver: Receiver) -> None:
    event = sample_events.put("a é")
    with opened(webhook(receiver.url, signing_secret=" ".join(SECRETS))) as target:
        assert list(target.deliver([event, event], 1)) == [DELIVERED] * 2
    for request in receiver.requests():
        assert request.headers["webhook-id"] == event.id
        assert abs(int(request.headers["webhook-timestamp"]) - time.time()) < 60
        for secret in SECRETS:
            Webhook(secret).verify(request.body, request.headers)


def test_a_trace_context_goes_on_as_the_headers_of_its_own_request(receiver: Receiver) -> None:
    with closing(webhook(receiver.url)) as target:
        assert (
            list(target.deliver([sample_events.put("a"), sample_events.traced(sample_events.put("a"))], 1))
            == [DELIVERED] * 2
        )
    names = ("traceparent", "tracestate")
    found = [{name: request.headers.get(name) for name in names} for request in receiver.requests()]
    assert found == [dict.fromkeys(names), sample_events.TRACE]


def test_headers_of_the_users_own_are_in_each_request_in_place_of_ours_of_the_same_name(receiver: Receiver) -> None:
    given = 'X-Tenant: a; authorization: Digest x="y"; user-agent: mine; Accept-Encoding: br'
    request = one_request(receiver, headers=given, signing_secret=SECRETS[0])
    assert request.headers.keys() == {
        "host", "content-type", "content-length", "x-tenant", "authorization", "user-agent", "accept-encoding",
        "webhook-id", "webhook-timestamp", "webhook-signature",
    }  # fmt: skip
    own = {name: request.headers[name] for name in ("x-tenant", "authorization", "user-agent", "accept-encoding")}
    assert own == {
        "x-tenant": "a", "authorization": 'Digest x="y"', "user-agent": "mine", "accept-encoding": "br"
    }  # fmt: skip


def test_a_header_that_the_endpoint_repeats_is_in_no_reason(receiver: Receiver) -> None:
    receiver.set(Answer(status=422, body="not with hunter2x and not with Token hunter3x"))
    with closing(webhook(receiver.url, headers="X-Key: hunter2x; X-Other: Token hunter3x")) as target:
        (outcome,) = target.deliver([sample_events.put("a")], 1)
    assert isinstance(outcome, Rejected)
    assert outcome.reason.endswith("not with *redacted* and not with *redacted*")


def refused(receiver: Receiver, event: Event, **settings: str) -> Exchange:
    """The exchange of an event that the receiver refuses, as a worker keeps it."""
    chosen = target_settings.load("webhook", {"endpoint": receiver.url, "allow_private": "on", **settings})
    with closing(RedactingTarget(create("webhook", chosen), chosen)) as target:
        (outcome,) = target.deliver([event], 1)
    assert isinstance(outcome, Failed | Rejected | Unavailable)
    assert outcome.exchange is not None
    return outcome.exchange


def test_the_request_and_the_answer_of_a_failure_are_kept(receiver: Receiver) -> None:
    receiver.set(Answer(status=422, body='{"error": "no such\ttenant\n"}', headers={"X-Request-Id": "r-17"}))
    event = sample_events.put("a")
    exchange = refused(receiver, event, auth_token="hunter2x", headers="X-Tenant: acme")
    [request] = receiver.requests()
    body = request.body.decode()
    assert exchange.request == HttpMessage(
        f"POST http://127.0.0.1:{receiver.port}",
        {
            "Content-Type": "application/json", "User-Agent": f"Bucketwire/{version('bucketwire')}",
            "Authorization": "*redacted*", "X-Tenant": "*redacted*",
        },
        body,
        len(request.body),
    )  # fmt: skip
    assert exchange.response is not None
    assert exchange.response.line.startswith("HTTP 422")
    assert exchange.response.body == '{"error": "no such\ttenant\n"}'
    assert exchange.response.headers["X-Request-Id"] == "r-17"


def test_no_secret_is_kept_of_an_answer_that_repeats_the_request_and_both_are_short(receiver: Receiver) -> None:
    basic = base64.b64encode(b'me:hunt"er2x').decode()
    # The secret lies across the end of what is kept: half of it would be as bad as the whole.
    echo = f'Basic {basic}, {{"password": "hunt\\"er2x"}}\x1b\u202e' + "é" * 459 + 'hunt"er2x' * 9
    headers = {"Set-Cookie": "session=1", "Location": "https://u:p@h/next?token=abc#x", "X-Long": "y" * 3000}
    receiver.set(Answer(status=500, body=echo, headers=headers))
    endpoint = receiver.url.replace("//", "//me:hunt%22er2x@") + "hooks/T0NotAWord99?key=qu3ry-s3cret"
    exchange = refused(receiver, sample_events.put("k" * 900), endpoint=endpoint, signing_secret=SECRETS[0])
    request, response = exchange.request, exchange.response
    assert response is not None
    assert request.headers["webhook-signature"] == request.headers["Authorization"] == "*redacted*"
    assert request.headers["webhook-id"]
    assert response.headers["Set-Cookie"] == "*redacted*"
    assert response.headers["Location"] == "https://h/next"
    kept = repr(exchange)
    for secret in (basic, "er2x", "hunt", "T0NotAWord99", "qu3ry-s3cret", "session=1", "token=abc", "\x1b", "\u202e"):
        assert secret not in kept, secret
    for message in (request, response):
        assert len(message.body.encode()) <= 1024 < message.size
        assert sum(len(name) + len(value) for name, value in message.headers.items()) <= 1024


def test_a_request_without_an_answer_is_kept_without_one(receiver: Receiver) -> None:
    receiver.set(Answer(close=True))
    assert refused(receiver, sample_events.put("a")).response is None


@pytest.mark.parametrize(("buckets", "kept"), [(("one", "one"), True), (("one", "two"), False)])
def test_a_request_with_events_of_several_buckets_is_kept_with_none_of_them(
    receiver: Receiver, buckets: tuple[str, str], kept: bool
) -> None:
    receiver.set(Answer(status=503))
    with closing(webhook(receiver.url, events_per_post="2")) as target:
        outcomes = target.deliver(
            [builders.event(str(number), bucket=bucket) for number, bucket in enumerate(buckets)], 1
        )
    assert [outcome.exchange is not None for outcome in outcomes if isinstance(outcome, Unavailable)] == [kept] * 2


# --- CloudEvents; `test_target_contract.py` has what is the same for every target


@pytest.mark.parametrize("payload", ["cloudevents", "cloudevents-binary"])
def test_a_cloud_event_is_read_by_the_sdk_and_recorded_as_the_same_event_by_another_bucketwire(
    receiver: Receiver, payload: str
) -> None:
    made = [sample_events.put(key) for key in sample_events.ODD_KEYS]
    made.append(sample_events.traced(sample_events.put("traced")))
    with closing(webhook(receiver.url, payload=payload, signing_secret=SECRETS[0])) as target:
        for _ in range(2):
            assert list(target.deliver(made, 1)) == [DELIVERED] * len(made)
    requests = receiver.requests()
    changing = {"webhook-timestamp", "webhook-signature"}
    sent = [(request.body, {name: request.headers[name] for name in request.headers.keys() - changing})
            for request in requests]  # fmt: skip
    assert sent[: len(made)] == sent[len(made) :]
    for event, request in zip(made, requests, strict=False):
        Webhook(SECRETS[0]).verify(request.body, request.headers)
        cloud_events.assert_is(cloud_events.of_http(request.headers, request.body), event)
        if payload == "cloudevents-binary":
            assert request.body == payloads.log(event).encode()
            assert request.headers["content-type"] == "application/json"
        else:
            assert request.headers["content-type"] == "application/cloudevents+json; charset=utf-8"
        (recorded,) = parse(request.body, request.headers, now_ms=0).events
        same = (recorded.name, recorded.path, recorded.version, recorded.time, recorded.record, recorded.trace)
        assert same == (event.name, event.path, event.version, event.time, event.record, event.trace)


def test_one_connection_is_kept_alive_through_calls(receiver: Receiver) -> None:
    with opened(webhook(receiver.url)) as target:
        for _ in range(3):
            assert set(target.deliver([sample_events.put(f"object-{number}") for number in range(20)], 1)) == {
                DELIVERED
            }
    assert len({request.connection for request in receiver.requests()}) == 1


def test_a_large_answer_is_read_no_further_than_needed(receiver: Receiver) -> None:
    receiver.set(Answer(status=200, body="x" * 5_000_000))
    with opened(webhook(receiver.url)) as target:
        assert list(target.deliver([sample_events.put("a"), sample_events.put("b")], 1)) == [DELIVERED] * 2
    assert len({request.connection for request in receiver.requests()}) == 2


# --- what answers mean

BUSY, LOGIN, PASSING = (429, 502, 503, 504), (401, 403, 407), (404, 405, 408, 500, 501, 507, 599)


@WINDOWS
@pytest.mark.parametrize(
    ("statuses", "kind"),
    [
        ((200, 201, 202, 204, 299), type(DELIVERED)),
        ((*BUSY, *LOGIN, 410, 421, 426, 428, 511), Unavailable),
        ((*PASSING, 300, 301, 302, 303, 304, 307, 308), Failed),
        ((400, 402, 406, 409, 411, 413, 414, 415, 418, 422, 451), Rejected),
    ],
)
def test_a_status_means(receiver: Receiver, window: int, statuses: Sequence[int], kind: type) -> None:
    with closing(webhook(receiver.url)) as target:
        for status in statuses:
            receiver.set(Answer(status=status))
            (outcome,) = target.deliver([sample_events.put("a")], window)
            assert isinstance(outcome, kind), f"{status}: {outcome}"
            if outcome != DELIVERED:
                assert str(status) in outcome.reason
            assert getattr(outcome, "pause", False) == (status == 410)


def test_retry_after_is_understood_as_seconds_and_as_a_date(receiver: Receiver) -> None:
    with closing(webhook(receiver.url)) as target:
        soon = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
        for status, value, least, most in [
            (503, "17", 17, 17),
            (429, soon, 60, 90),
            (500, "5", 5, 5),
            (404, "5", 5, 5),
            (503, "Fri, 31 Dec 1999 23:59:59 GMT", 0, 0),
        ]:
            receiver.set(Answer(status=status, headers={"Retry-After": value}))
            (outcome,) = target.deliver([sample_events.put("a")], 1)
            assert isinstance(outcome, Failed | Unavailable)
            assert outcome.retry_after is not None
            assert least <= outcome.retry_after <= most
        receiver.set(Answer(status=503, headers={"Retry-After": "when it suits"}))
        (outcome,) = target.deliver([sample_events.put("a")], 1)
        assert isinstance(outcome, Unavailable)
        assert outcome.retry_after is None


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_named_and_not_followed(receiver: Receiver, status: int) -> None:
    receiver.set(Answer(status=status, headers={"Location": "/elsewhere"}, path="/"))
    with closing(webhook(receiver.url)) as target:
        (outcome,) = target.deliver([sample_events.put("a")], 1)
    assert isinstance(outcome, Failed)
    assert "'/elsewhere'" in outcome.reason
    assert [request.path for request in receiver.requests()] == ["/"]


def test_a_rejection_carries_the_beginning_of_the_answer_without_secrets(receiver: Receiver) -> None:
    said = f"no: Bearer t0p-s3cret and {SECRETS[0]}\r\n\t\x1b[31mé" + "x" * 2000
    receiver.set(Answer(status=422, body=said))
    with closing(webhook(receiver.url, auth_token="t0p-s3cret", signing_secret=SECRETS[0])) as target:
        (outcome,) = target.deliver([sample_events.put("a")], 1)
    assert isinstance(outcome, Rejected)
    words = outcome.reason.partition("no: ")[2]
    assert words.startswith("Bearer *redacted* and *redacted* \ufffd[31mé")
    assert len(words.encode()) <= 500
    assert outcome.reason.isprintable()


def test_a_refused_login_hints_at_the_token_and_does_not_tell_it(receiver: Receiver) -> None:
    receiver.set(Answer(status=403))
    with closing(webhook(receiver.url.replace("//", "//user:pa55word@"), auth_token="t0p-s3cret")) as target:
        (outcome,) = target.deliver([sample_events.put("a")], 1)
    assert isinstance(outcome, Unavailable)
    assert "auth_token" in outcome.reason
    assert "t0p-s3cret" not in outcome.reason
    assert "pa55word" not in outcome.reason


def test_no_answer_in_time_is_unavailable(receiver: Receiver) -> None:
    receiver.set(Answer(delay=5))
    with closing(webhook(receiver.url, read_timeout="300ms")) as target:
        began = time.monotonic()
        (outcome,) = target.deliver([sample_events.put("a")], 1)
        assert time.monotonic() - began < 2
    assert isinstance(outcome, Unavailable)
    assert "no answer within 0.3 s" in outcome.reason


@WINDOWS
def test_an_endpoint_that_hangs_is_not_asked_by_every_event(receiver: Receiver, window: int) -> None:
    receiver.set(Answer(delay=5))
    with closing(webhook(receiver.url, read_timeout="300ms")) as target:
        began = time.monotonic()
        outcomes = target.deliver([sample_events.put(f"object-{number}") for number in range(200)], window)
        assert time.monotonic() - began < 4
    tried = [outcome for outcome in outcomes if isinstance(outcome, Unavailable)]
    assert len(tried) == len(receiver.requests()) <= min(64, window)
    assert all(isinstance(outcome, Unavailable | NotAttempted) for outcome in outcomes)


def test_a_slow_answer_within_the_time_limit_is_a_delivery(receiver: Receiver) -> None:
    receiver.set(Answer(delay=1))
    with closing(webhook(receiver.url, read_timeout="5s")) as target:
        assert list(target.deliver([sample_events.put("a"), sample_events.put("b")], 1)) == [DELIVERED] * 2


def test_a_connection_closed_without_an_answer_is_the_events_failure(receiver: Receiver) -> None:
    receiver.set(Answer(close=True, containing="poison"))
    with closing(webhook(receiver.url)) as target:
        outcomes = target.deliver([sample_events.put("a", metadata="poison"), sample_events.put("b")], 1)
    assert isinstance(outcomes[0], Failed)
    assert outcomes[1] == DELIVERED


@contextlib.contextmanager
def raw_endpoint(answer: bytes | None) -> Iterator[Target]:
    """A target whose endpoint answers one request with these bytes and hangs up; None: it stops listening first."""
    with socket.create_server((services.LOOPBACK, services.free_port())) as listening:

        def serve() -> None:
            listening.accept()[0].close()  # the look of `open`
            wire, _ = listening.accept()
            with wire, wire.makefile("rb") as stream:
                headers = http.client.parse_headers(stream) if stream.readline() else {}
                stream.read(int(headers["Content-Length"]))  # unread bytes would make the kernel send a reset
                if answer is None:
                    listening.close()
                else:
                    wire.sendall(answer)

        serving = threading.Thread(target=serve)
        serving.start()
        target = webhook(f"http://{services.LOOPBACK}:{listening.getsockname()[1]}/")
        try:
            yield target
        finally:
            target.close()
            serving.join(10)


def test_an_endpoint_that_stops_listening_is_unavailable() -> None:
    with raw_endpoint(None) as target:
        (outcome,) = target.deliver([sample_events.put("a")], 1)
    assert isinstance(outcome, Unavailable)


@pytest.mark.parametrize("words", [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 banana\r\n\r\n", b"HTTP/1.1 2"])
def test_an_answer_that_is_not_http_is_not_taken_for_one(words: bytes) -> None:
    with raw_endpoint(words) as target:
        (outcome,) = target.deliver([sample_events.put("a")], 1)
    assert isinstance(outcome, Failed)


@pytest.mark.parametrize("rest", [b"Content-Length: 9\r\n\r\nh", b"Transfer-Encoding: chunked\r\n\r\n5\r\nh", b"Cont"])
def test_a_status_counts_even_when_what_follows_breaks_off(rest: bytes) -> None:
    with raw_endpoint(b"HTTP/1.1 200 OK\r\n" + rest) as target:
        assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]


def test_urls_do_not_get_into_the_drivers_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with raw_endpoint(b"HTTP/1.1 200 OK\r\nCont") as target:
        target.deliver([sample_events.put("a")], 1)
    assert [record for record in caplog.records if record.name.startswith("urllib3")] == []


def test_a_name_that_does_not_resolve_is_unavailable() -> None:
    with pytest.raises(TargetUnavailable, match=r"no-such-host\.invalid"):
        webhook("http://no-such-host.invalid/").open()


# --- order and concurrency


def most_at_once(requests: Sequence[Request], delay: float) -> int:
    """How many requests were open together, each from its arrival until `delay` later."""
    return max(sum(other.at <= request.at < other.at + delay for other in requests) for request in requests)


def test_in_window_1_one_request_follows_the_other(receiver: Receiver) -> None:
    receiver.set(Answer(delay=0.02))
    made = [sample_events.put(f"object-{number}") for number in range(20)]
    with closing(webhook(receiver.url)) as target:
        assert set(target.deliver(made, 1)) == {DELIVERED}
    assert receiver.bodies() == [payloads.log(event).encode() for event in made]
    assert most_at_once(receiver.requests(), 0.02) == 1


@pytest.mark.parametrize(("window", "most", "delay"), [(8, 8, 0.2), (1000, 64, 1.0)])
def test_a_window_bounds_the_open_requests_and_is_used(
    receiver: Receiver, window: int, most: int, delay: float
) -> None:
    receiver.set(Answer(delay=delay))
    with closing(webhook(receiver.url)) as target:
        assert set(target.deliver([sample_events.put(f"object-{number}") for number in range(80)], window)) == {
            DELIVERED
        }
    assert most // 2 < most_at_once(receiver.requests(), delay) <= most


def test_an_objects_requests_are_never_open_together(receiver: Receiver) -> None:
    receiver.set(Answer(delay=0.02))
    made = [sample_events.put(f"object-{number % 4}", number=number + 1) for number in range(40)]
    with closing(webhook(receiver.url)) as target:
        assert set(target.deliver(made, 100)) == {DELIVERED}
    by_key: dict[str, list[Request]] = {}
    for request in receiver.requests():
        by_key.setdefault(request.json()["Key"], []).append(request)
    for requests in by_key.values():
        numbers = [sample_events.number_of(request.body.decode()) for request in requests]
        assert numbers == sorted(numbers)
        assert all(after.at - before.at >= 0.02 for before, after in itertools.pairwise(requests))


@WINDOWS
def test_what_fails_holds_up_its_own_object_only(receiver: Receiver, window: int) -> None:
    bad, after, other = sample_events.put("a", metadata="bad"), sample_events.put("a"), sample_events.put("b")
    receiver.set(Answer(status=500, containing="bad"))
    with closing(webhook(receiver.url)) as target:
        outcomes = list(target.deliver([bad, after, other, after], window))
    assert isinstance(outcomes[0], Failed)
    assert outcomes[1:] == [NOT_ATTEMPTED, DELIVERED, NOT_ATTEMPTED]
    assert len(receiver.requests()) == 2


@WINDOWS
def test_after_a_busy_answer_nothing_more_is_sent(receiver: Receiver, window: int) -> None:
    receiver.set(Answer(status=503, headers={"Retry-After": "9"}))
    with closing(webhook(receiver.url)) as target:
        outcomes = list(target.deliver([sample_events.put(f"object-{number}") for number in range(500)], window))
    sent = len(receiver.requests())
    assert sent <= min(window, 64)
    assert outcomes.count(NOT_ATTEMPTED) == 500 - sent
    assert {type(outcome) for outcome in outcomes if outcome != NOT_ATTEMPTED} == {Unavailable}


def test_an_interrupted_call_leaves_no_request_behind(receiver: Receiver) -> None:
    receiver.set(Answer(delay=0.2))
    made = [sample_events.put(f"object-{number}") for number in range(200)]
    with closing(webhook(receiver.url)) as target:

        class TimeIsOverError(BaseException):
            pass

        def interrupted(*_: object) -> None:  # as Celery's soft time limit strikes
            raise TimeIsOverError

        def interrupt() -> None:
            receiver.wait(5)
            os.kill(os.getpid(), signal.SIGUSR1)

        before = signal.signal(signal.SIGUSR1, interrupted)
        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            with pytest.raises(TimeIsOverError):
                target.deliver(made, 8)
        finally:
            thread.join()
            signal.signal(signal.SIGUSR1, before)
        sent = len(receiver.requests())
        assert 5 <= sent <= 24
    services.until(lambda: open_connections(receiver) == 0)
    assert len(receiver.requests()) == sent


def open_connections(receiver: Receiver) -> int:
    """Connections that the receiver has with anybody."""
    found = psutil.Process(receiver.pid).net_connections("tcp")
    return sum(connection.status == psutil.CONN_ESTABLISHED for connection in found)


# --- TLS


def test_a_client_certificate_is_shown_and_renewed_without_reopening(
    certificates: services.Certificates, tmp_path: Path
) -> None:
    cert, key = tmp_path / "client.crt", tmp_path / "client.key"
    shutil.copy(certificates.client_cert, cert)
    shutil.copy(certificates.client_key, key)
    with services.receiver(client_cert=True) as receiver:
        (refused,) = attempt(webhook(receiver.url, tls_ca=str(certificates.ca)), [sample_events.put("a")], 1)
        assert isinstance(refused, Unavailable)
        with opened(
            webhook(receiver.url, tls_ca=str(certificates.ca), client_cert=str(cert), client_key=str(key))
        ) as target:
            assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]
            shutil.copy(certificates.cert, cert)
            shutil.copy(certificates.key, key)
            assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]
        assert [request.subject for request in receiver.requests()] == ["client", "server"]


def test_a_certificate_for_another_name_is_refused(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("example.org").configure_cert(context)
    with socket.create_server((services.LOOPBACK, services.free_port())) as listening:

        def shake_hands() -> None:
            wire, _ = listening.accept()
            with wire, contextlib.suppress(ssl.SSLError):
                context.wrap_socket(wire, server_side=True)

        shaking = threading.Thread(target=shake_hands)
        shaking.start()
        target = webhook(f"https://127.0.0.1:{listening.getsockname()[1]}/", tls_ca=str(tmp_path / "ca.pem"))
        with pytest.raises(TargetUnavailable, match="IP address mismatch"):
            target.open()
        shaking.join()


def test_verification_can_be_waived_without_a_warning_at_each_request(certificates: services.Certificates) -> None:
    with (
        services.receiver(tls=True) as receiver,
        opened(webhook(receiver.url, tls_ca=str(certificates.other_ca), tls_skip_verify="on")) as target,
    ):
        assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]


def test_a_port_that_does_not_speak_tls_is_unavailable(receiver: Receiver, certificates: services.Certificates) -> None:
    began = time.monotonic()
    with pytest.raises(TargetUnavailable, match=r"TLS|SSL"):
        webhook(receiver.url.replace("http:", "https:"), tls_ca=str(certificates.ca)).open()
    assert time.monotonic() - began < LIMIT


# --- a template


def test_a_template_gives_each_event_its_path_and_headers(receiver: Receiver) -> None:
    settings = {"path": "/{bucket}/{key}", "headers": "X-Kind: {kind}; X-Name: n={name}; X-Fixed: {{a}}"}
    with closing(webhook(f"{receiver.url}base/?token=1", **settings)) as target:
        made = [sample_events.put("photos/a b.jpg"), sample_events.delete("naïve%2F\r\nX: y")]
        assert list(target.deliver(made, 1)) == [DELIVERED] * 2
    first, second = receiver.requests()
    assert first.path == "/base/images/photos/a%20b.jpg?token=1"
    assert second.path == "/base/images/na%C3%AFve%252F%0D%0AX%3A%20y?token=1"
    assert [first.headers[name] for name in ("x-kind", "x-name", "x-fixed")] == ["ObjectCreated", "n=a%20b.jpg", "{a}"]
    assert [second.headers[name] for name in ("x-kind", "x-name")] == [
        "ObjectRemoved", "n=na%C3%AFve%252F%0D%0AX:%20y",
    ]  # fmt: skip


@WINDOWS
def test_any_key_is_part_of_a_path_and_of_a_header(receiver: Receiver, window: int) -> None:
    made = [sample_events.put(key) for key in sample_events.ODD_KEYS]
    with closing(webhook(receiver.url, path="/k/{key}", headers="X-Key: {key}")) as target:
        assert list(target.deliver(made, window)) == [DELIVERED] * len(made)
    keys = sorted(sample_events.ODD_KEYS)
    assert sorted(unquote(request.path[3:]) for request in receiver.requests()) == keys
    assert sorted(unquote(request.headers["x-key"]) for request in receiver.requests()) == keys


@WINDOWS
def test_a_key_that_leads_elsewhere_is_rejected_alone(receiver: Receiver, window: int) -> None:
    made = [sample_events.put(key) for key in ("a", "../secret", "a/../../b", "./c", "a/..b/...", "z")]
    with closing(webhook(receiver.url, path="/events/{key}")) as target:
        outcomes = list(target.deliver(made, window))
    refused = Rejected("path of this event has a segment . or .., which leads elsewhere")
    assert outcomes == [DELIVERED, refused, refused, refused, DELIVERED, DELIVERED]


@pytest.mark.parametrize("status", [403, 410])
def test_a_path_of_a_template_that_is_refused_fails_its_event_alone(receiver: Receiver, status: int) -> None:
    receiver.set(Answer(status=status, containing="poison"))
    made = [sample_events.put(key) for key in ("a", "poison", "b")]
    with closing(webhook(receiver.url, path="/{key}")) as target:
        first, refused, last = target.deliver(made, 1)
    assert (first, last) == (DELIVERED, DELIVERED)
    assert isinstance(refused, Failed)


def test_a_reference_is_no_template_and_the_fixed_parts_are_secrets(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_KEY", "k{bucket}y-hunter2")
    receiver.set(Answer(status=400, body="no: k{bucket}y-hunter2 hunter3-images"))
    with closing(webhook(receiver.url, headers="X-Key: env:HOOK_KEY; X-Other: hunter3-{bucket}")) as target:
        (outcome,) = target.deliver([sample_events.put("a")], 1)
    (request,) = receiver.requests()
    assert [request.headers[name] for name in ("x-key", "x-other")] == ["k{bucket}y-hunter2", "hunter3-images"]
    assert isinstance(outcome, Rejected)
    assert "hunter" not in outcome.reason
    monkeypatch.setenv("HOOKS", "X-Key: k{bucket}y")
    with closing(webhook(receiver.url, headers="env:HOOKS")) as target:
        target.deliver([sample_events.put("a")], 1)
    assert receiver.requests()[-1].headers["x-key"] == "k{bucket}y"
