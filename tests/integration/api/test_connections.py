"""What clients do with their connections costs other clients nothing: a sender of events is answered all the time."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import httpx
import pytest

from app.outbox.engine.database import Database
from tests import services
from tests.integration.api.conftest import Api, SecureApi, Start, keys, url_of
from tests.services import until
from tests.support.api_requests import body
from tests.support.builders import migrated
from tests.support.properties import times

PATIENCE = 20.0  # seconds; each kind of connection below stopped a worker of 32 threads for longer, most for ever
POSTS = times(10, 20)
MORE = times(40, 200)  # connections than a worker has threads
HEAD = b"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 4000\r\n"
GET = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
LAST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.fixture
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    opened = migrated(f"sqlite:///{tmp_path_factory.mktemp('edge')}/outbox.db")
    yield opened
    opened.close()


@pytest.fixture
def api(database: Database, start: Start) -> Api:
    """An API of one process."""
    return start(url_of(database), processes=1)


@pytest.fixture
def secure(database: Database) -> Iterator[SecureApi]:
    """An API of one process, with TLS."""
    with SecureApi(url_of(database), {"GUNICORN_CMD_ARGS": "--workers 1"}) as started:
        yield started.start()
        started.client.close()


def connect(api: Api, stack: ExitStack) -> socket.socket:
    client = stack.enter_context(socket.socket())
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(PATIENCE)
    client.connect((services.LOOPBACK, api.port))
    return client


def hold_the_answered(client: socket.socket) -> None:
    client.sendall(LAST)


def send_nothing(_client: socket.socket) -> None:
    pass


def begin_a_head(client: socket.socket) -> None:
    client.sendall(HEAD)


def begin_a_body(client: socket.socket) -> None:
    client.sendall(HEAD + b"\r\n{")


def end_within_a_body(client: socket.socket) -> None:
    begin_a_body(client)
    client.shutdown(socket.SHUT_WR)


def end_after_a_request(client: socket.socket) -> None:
    client.sendall(LAST)
    client.shutdown(socket.SHUT_WR)


def read_nothing(client: socket.socket) -> None:
    client.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            client.send(GET * 100)


def posts(api: Api, verify: ssl.SSLContext | bool = True) -> list[int]:
    """Post events, each over a new connection, and more over one."""
    answers = []
    for number in range(POSTS):
        with httpx.Client(base_url=api.url, timeout=PATIENCE, verify=verify, trust_env=False) as client:
            answers += [client.post("/v1/events", content=body(f"{number}-{key}")).status_code for key in "ab"]
    return answers


@pytest.mark.parametrize(
    ("behave", "connections"),
    [
        (hold_the_answered, 40),
        (send_nothing, times(40, 500)),
        (begin_a_head, MORE),
        (begin_a_body, MORE),
        (end_within_a_body, MORE),
        (end_after_a_request, MORE),
        (read_nothing, MORE),
    ],
)
def test_a_sender_is_answered_whatever_others_do_with_their_connections(
    api: Api, database: Database, stack: ExitStack, behave: Callable[[socket.socket], None], connections: int
) -> None:
    for _ in range(connections):
        behave(connect(api, stack))
    assert posts(api) == [202] * (2 * POSTS)
    assert len(keys(database)) == 2 * POSTS


@pytest.mark.nightly("a handshake that was begun", when=lambda sent: sent in {b"", b"\x16"})
@pytest.mark.parametrize("sent", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01"])
def test_a_sender_is_answered_while_others_do_not_finish_a_tls_handshake(
    secure: SecureApi, stack: ExitStack, sent: bytes
) -> None:
    for _ in range(MORE):
        connect(secure, stack).sendall(sent)
    assert posts(secure, secure.trusted) == [202] * (2 * POSTS)


def test_a_sender_is_answered_while_others_hold_closed_tls_connections(secure: SecureApi, stack: ExitStack) -> None:
    clients = [
        stack.enter_context(secure.trusted.wrap_socket(connect(secure, stack), server_hostname="localhost"))
        for _ in range(30)
    ]
    for client in clients:
        hold_the_answered(client)
    assert posts(secure, secure.trusted) == [202] * (2 * POSTS)


def test_a_sender_waits_behind_few_of_many_pipelined_reads(api: Api, stack: ExitStack) -> None:
    clients = [connect(api, stack) for _ in range(100)]
    for client in clients:
        client.sendall(b"GET /v1/targets HTTP/1.1\r\nHost: localhost\r\n\r\n" * 30)
    assert posts(api) == [202] * (2 * POSTS)
    reads = 0
    for client in clients:
        client.setblocking(False)
        with suppress(BlockingIOError):
            reads += client.recv(1 << 20).count(b"HTTP/1.1 200")
    assert reads / (2 * POSTS) < 60  # they would be 100 if each client had a turn before each post


def test_a_slow_request_is_answered_when_it_is_complete(api: Api, stack: ExitStack, database: Database) -> None:
    content = body("slow").ljust(4000)
    begun = [connect(api, stack) for _ in range(100)]
    for piece in (HEAD[:30], HEAD[30:] + b"\r\n", content[:10], content[10:]):
        for client in begun:
            client.sendall(piece)
    for client in begun:
        assert client.recv(1000).startswith(b"HTTP/1.1 202")
    assert keys(database) == ["slow"]


def test_a_connection_that_the_client_holds_is_closed_after_a_while(api: Api, stack: ExitStack) -> None:
    held = connect(api, stack)
    hold_the_answered(held)
    while held.recv(1000):
        pass  # it is half-closed then
    until(lambda: _is_reset(held), PATIENCE, what="the other half to be closed")


def _is_reset(client: socket.socket) -> bool:
    try:
        client.sendall(b"x")
    except OSError:
        return True
    return False


def test_a_refused_request_is_answered_completely_while_its_sender_sends_on(api: Api, stack: ExitStack) -> None:
    for _ in range(20):
        client = connect(api, stack)
        client.sendall(
            b"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nContent-Length: nonsense\r\n\r\n" + b"x" * 20000
        )
        answer = b""
        while piece := client.recv(1000):
            answer += piece
        assert answer.startswith(b"HTTP/1.1 400"), answer


@pytest.mark.parametrize("requests", [b"", LAST.replace(b"close", b"keep-alive")])
def test_new_connections_take_the_place_of_idle_ones(database: Database, stack: ExitStack, requests: bytes) -> None:
    api = stack.enter_context(Api(url_of(database), {"GUNICORN_CMD_ARGS": "--workers 1 --worker-connections 40"}))
    stack.enter_context(api.client)
    api.start()
    for _ in range(100):
        client = connect(api, stack)
        client.sendall(requests)
    assert posts(api) == [202] * (2 * POSTS)


def test_no_connection_is_closed_unanswered_while_processes_are_replaced(api: Api) -> None:
    """A process that was stopped in the first millisecond of a connection closed it, and the request had no answer."""

    def ask(number: int) -> bytes:
        with socket.create_connection((services.LOOPBACK, api.port), timeout=PATIENCE) as client:
            time.sleep(number % 3 * 0.004)
            client.sendall(LAST)
            return client.recv(1000)[:12]

    with ThreadPoolExecutor(8) as pool:
        for _ in range(4):
            os.kill(api.pid, signal.SIGHUP)
            assert set(pool.map(ask, range(500))) == {b"HTTP/1.1 200"}


def test_of_too_many_unfinished_requests_the_oldest_are_given_up(api: Api, stack: ExitStack) -> None:
    oldest = connect(api, stack)
    begin_a_body(oldest)
    for _ in range(600):
        begin_a_body(connect(api, stack))
    assert posts(api) == [202] * (2 * POSTS)
    assert b" 202 " not in oldest.recv(1000)
