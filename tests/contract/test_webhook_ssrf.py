"""What a webhook may reach: the private-address guard, and proxies."""

from __future__ import annotations

import contextlib
import http.client
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from app.config import target_settings
from app.config.errors import BadSettings
from tests import services
from tests.contract.probes.base import attempt, opened
from tests.contract.probes.webhook import webhook
from tests.services import Receiver
from tests.support import sample_events
from workers.delivery.outcomes import DELIVERED, Unavailable
from workers.targets import create, http_pool
from workers.targets.base import TargetUnavailable


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "127.1", "0x7f000001", "2130706433", "[::1]", "[::ffff:7f00:1]"]
)
def test_a_private_address_is_refused_in_every_spelling(receiver: Receiver, host: str) -> None:
    values = {"endpoint": f"http://{host}:{receiver.port}/", "timeout": "2s"}
    try:
        target = create("webhook", target_settings.load("webhook", dict(values)))
    except BadSettings:
        return  # refused even earlier
    with pytest.raises(TargetUnavailable, match=r"not a public address; set allow_private=on") as caught:
        target.open()
    assert f"{host.strip('[]')} is {host.strip('[]')}" not in str(caught.value)
    (outcome,) = attempt(target, [sample_events.put("a")], 1)
    target.close()
    assert isinstance(outcome, Unavailable)
    assert receiver.requests() == []


def test_a_name_with_one_private_address_among_public_ones_is_refused(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", resolver([["8.8.8.8", "127.0.0.1"]]))
    target = webhook(f"http://endpoint.test:{receiver.port}/", allow_private="off")
    with pytest.raises(TargetUnavailable, match=r"endpoint\.test is 127\.0\.0\.1"):
        target.open()
    assert receiver.requests() == []


def test_a_name_that_changes_its_meaning_after_the_look_is_not_followed(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The second answer is what an attacker's name server gives to whoever asks again. Nothing listens at the first,
    # which stands for a public address, as tests do not leave this machine.
    answers = [["127.0.0.2"], ["127.0.0.1"]]
    monkeypatch.setattr(socket, "getaddrinfo", resolver(answers))
    monkeypatch.setattr(http_pool, "is_public", lambda address: address == "127.0.0.2")
    with closing(webhook(f"http://endpoint.test:{receiver.port}/", allow_private="off")) as target:
        (outcome,) = attempt(target, [sample_events.put("a")], 1)
    assert isinstance(outcome, Unavailable)
    assert "refused" in outcome.reason
    assert answers == [["127.0.0.1"]]
    assert receiver.requests() == []


def test_the_guard_looks_at_every_connection_and_not_only_at_the_first(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = {"127.0.0.1"}
    monkeypatch.setattr(http_pool, "is_public", lambda address: address in allowed)
    with opened(webhook(receiver.url, allow_private="off")) as target:
        assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]
        allowed.clear()
        assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED], (
            "the open connection is as good as it was"
        )
        receiver.stop()
        receiver.start()
        (outcome,) = target.deliver([sample_events.put("a")], 1)
    assert isinstance(outcome, Unavailable)
    assert len(receiver.requests()) == 2


def resolver(answers: list[list[str]]) -> Any:
    """`getaddrinfo` with these answers for names, one after the other; addresses stay what they are."""
    real = socket.getaddrinfo

    def resolve(host: Any, port: Any, *rest: Any, **named: Any) -> Any:
        try:
            socket.inet_pton(socket.AF_INET, host)
        except OSError:
            answer = answers.pop(0)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in answer]
        return real(host, port, *rest, **named)

    return resolve


# --- proxies


class Proxy(socketserver.ThreadingTCPServer):
    """A proxy that forwards and tunnels everything to one port, whatever name it is asked for."""

    daemon_threads = False
    block_on_close = True

    def __init__(self, port: int) -> None:
        super().__init__((services.LOOPBACK, services.free_port()), _Proxied)
        self.endpoint = port
        self.asked: list[str] = []
        self.logins: list[str | None] = []
        self.refuses = False

    @property
    def url(self) -> str:
        return f"http://{services.LOOPBACK}:{self.server_address[1]}"


class _Proxied(socketserver.StreamRequestHandler):
    server: Proxy

    def handle(self) -> None:
        while line := self.rfile.readline():
            method, asked, _ = line.decode().split()
            headers = http.client.parse_headers(self.rfile)
            self.server.asked.append(f"{method} {asked}")
            self.server.logins.append(headers["Proxy-Authorization"])
            if self.server.refuses:
                self.rfile.read(int(headers["Content-Length"] or 0))  # unread, it would reset the connection
                self.wfile.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
                return
            if method == "CONNECT":
                self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                self.tunnel()
                return
            self.forward(method, asked, headers, self.rfile.read(int(headers["Content-Length"])))

    def forward(self, method: str, asked: str, headers: http.client.HTTPMessage, body: bytes) -> None:
        there = http.client.HTTPConnection(services.LOOPBACK, self.server.endpoint, timeout=5)
        path = "/" + asked.split("/", 3)[3]
        there.request(method, path, body, {"Host": headers["Host"], "Content-Type": headers["Content-Type"]})
        answer = there.getresponse()
        answer.read()
        there.close()
        self.wfile.write(f"HTTP/1.1 {answer.status} -\r\nContent-Length: 0\r\n\r\n".encode())

    def tunnel(self) -> None:
        with socket.create_connection((services.LOOPBACK, self.server.endpoint), timeout=5) as there:

            def copy(source: socket.socket, sink: socket.socket) -> None:
                with contextlib.suppress(OSError):
                    while received := source.recv(65536):
                        sink.sendall(received)
                    sink.shutdown(socket.SHUT_WR)

            back = threading.Thread(target=copy, args=(there, self.request))
            back.start()
            copy(self.request, there)
            back.join()


@contextlib.contextmanager
def proxy(port: int) -> Iterator[Proxy]:
    with Proxy(port) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        try:
            yield server
        finally:
            server.shutdown()
            serving.join()


def test_http_goes_through_the_proxy_of_the_environment(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    with proxy(receiver.port) as between:
        monkeypatch.setenv("HTTP_PROXY", between.url.replace("//", "//us%40er:pass@"))
        monkeypatch.setenv("http_proxy", between.url.replace("//", "//us%40er:pass@"))
        with opened(webhook("http://endpoint.test/hook?x=1")) as target:
            assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]
        assert between.asked == ["POST http://endpoint.test/hook?x=1"]
        assert between.logins == ["Basic dXNAZXI6cGFzcw=="]
    (request,) = receiver.requests()
    assert (request.path, request.headers["host"]) == ("/hook?x=1", "endpoint.test")


def test_https_goes_through_the_proxy_in_a_tunnel(
    certificates: services.Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    with services.receiver(tls=True) as receiver, proxy(receiver.port) as between:
        monkeypatch.setenv("https_proxy", between.url)
        # The certificate is for localhost; the name asked for has to be another, as loopback is never proxied.
        with closing(webhook("https://endpoint.test/", tls_ca=str(certificates.ca))) as target:
            (refused,) = attempt(target, [sample_events.put("a")], 1)
        assert isinstance(refused, Unavailable)
        assert "certificate" in refused.reason.lower()
        with closing(webhook("https://endpoint.test/", tls_skip_verify="on")) as target:
            assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]
        assert between.asked == ["CONNECT endpoint.test:443"] * 2
        assert len(receiver.requests()) == 1


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_refuses_is_unavailable(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    with proxy(0) as between:
        between.refuses = True
        monkeypatch.setenv(f"{scheme}_proxy", between.url)
        with closing(webhook(f"{scheme}://endpoint.test/")) as target:
            (outcome,) = attempt(target, [sample_events.put("a")], 1)
    assert isinstance(outcome, Unavailable)
    assert "407" in outcome.reason


def test_a_proxy_that_is_down_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://{services.LOOPBACK}:{services.free_port()}")
    with pytest.raises(TargetUnavailable, match="refused"):
        webhook("http://endpoint.test/").open()


def test_no_proxy_and_loopback_go_straight(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://{services.LOOPBACK}:{services.free_port()}")
    with closing(webhook(receiver.url)) as target:
        assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]
    monkeypatch.setenv("no_proxy", ".test")
    monkeypatch.setattr(socket, "getaddrinfo", resolver([["127.0.0.1"]] * 5))
    with closing(webhook(f"http://endpoint.test:{receiver.port}/")) as target:
        assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]


@pytest.mark.parametrize(("answer", "words"), [(["10.0.0.1"], "not a public address"), ([], "does not resolve here")])
def test_the_guard_asks_about_the_endpoint_before_a_proxy_is_asked(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, answer: list[str], words: str
) -> None:
    with proxy(receiver.port) as between:
        monkeypatch.setenv("http_proxy", between.url)
        if answer:
            monkeypatch.setattr(socket, "getaddrinfo", resolver([answer] * 9))
        with closing(webhook("http://endpoint.test/", allow_private="off")) as target:
            (outcome,) = attempt(target, [sample_events.put("a")], 1)
        assert isinstance(outcome, Unavailable)
        assert words in outcome.reason
        assert between.asked == []


def test_a_socks_proxy_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "socks5://127.0.0.1:1080")
    with pytest.raises(TargetUnavailable, match="HTTP_PROXY"):
        webhook("http://endpoint.test/").open()
