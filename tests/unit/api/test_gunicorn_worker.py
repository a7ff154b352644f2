"""Whether a thread of the API's worker waits for the next request of a connection."""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.workers.gthread import ThreadWorker

from app.server import gunicorn_worker
from app.server.gunicorn_worker import ClientSocket, Slots, Worker
from tests.services import until


@pytest.fixture
def worker() -> Iterator[Worker]:
    """A worker of one thread, without anything else of gunicorn."""
    made = Worker.__new__(Worker)
    made._slots, made._staying = Slots(1, 1, 1), threading.Semaphore(1)
    made._add_threads = lambda _number: None  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as made.tpool:
        yield made


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The client's end of a connection, and the server's."""
    client, server = socket.socketpair()
    with client, server:
        yield client, server


def connection(sock: socket.socket, *, read_ahead: bytes = b"") -> Any:
    unreader = SimpleNamespace(buf=io.BytesIO(read_ahead))
    return SimpleNamespace(sock=sock, parser=SimpleNamespace(unreader=unreader))


def test_it_takes_a_request_that_has_come_and_waits_for_none_for_long(
    worker: Worker, ends: tuple[socket.socket, socket.socket]
) -> None:
    client, server = ends
    assert not worker._comes_next(connection(server))
    client.send(b"GET / HTTP/1.1\r\n")
    assert worker._comes_next(connection(server))


def test_few_threads_wait_for_the_next_requests_of_their_connections(
    worker: Worker, ends: tuple[socket.socket, socket.socket]
) -> None:
    client, server = ends
    client.send(b"GET / HTTP/1.1\r\n")
    with worker._staying:
        assert not worker._comes_next(connection(server))
    assert worker._comes_next(connection(server))


def test_a_thread_that_waits_for_the_next_request_has_no_slot(
    monkeypatch: pytest.MonkeyPatch, worker: Worker, ends: tuple[socket.socket, socket.socket]
) -> None:
    client, server = ends
    monkeypatch.setattr(gunicorn_worker, "_NEXT_REQUEST", 10_000)
    answers = iter((True, False))
    monkeypatch.setattr(ThreadWorker, "handle", lambda _self, _conn: next(answers))
    waiting = ClientSocket(server, worker._slots)
    handled = worker.tpool.submit(worker.handle, connection(waiting))
    until(lambda: worker._staying._value == 0, 10, what="the thread to wait")
    with worker._slots:
        client.send(b"GET / HTTP/1.1\r\n")
    assert handled.result(10) is False


def test_gunicorn_itself_goes_on_with_what_it_has_read_ahead(
    worker: Worker, ends: tuple[socket.socket, socket.socket]
) -> None:
    client, server = ends
    client.send(b" / HTTP/1.1\r\n")
    assert not worker._comes_next(connection(server, read_ahead=b"GET"))


def test_a_thread_gives_its_turn_to_another_while_its_client_sends_nothing(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    client, server = ends
    slots = Slots(1, 1, 1)
    waiting = ClientSocket(server, slots)

    def receive() -> bytes:
        with slots:
            return waiting.recv(10)

    with ThreadPoolExecutor(1) as other:
        received = other.submit(receive)
        until(lambda: slots._waiting, 10, what="the thread to wait")
        with slots:
            client.send(b"late")
        assert received.result(10) == b"late"


def test_a_read_beyond_their_number_waits_for_its_turn_without_a_slot(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    added: list[int] = []
    slots = Slots(2, 1, 1, added.append)
    first, second = (ClientSocket(end, slots) for end in ends)

    def read() -> None:
        with slots, slots.reading(second):
            pass

    with ThreadPoolExecutor(1) as other:
        with slots, slots.reading(first):
            reading = other.submit(read)
            until(lambda: added, 10, what="the other to wait")
            with slots:
                assert not reading.done()
        reading.result(10)
    assert added == [1, -1]


def test_a_read_gives_its_turn_to_another_while_its_client_is_waited_for(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    client, server = ends
    slots = Slots(2, 1, 1)
    waiting, beside = (ClientSocket(end, slots) for end in (server, client))

    def receive() -> bytes:
        with slots, slots.reading(waiting):
            return waiting.recv(10)

    with ThreadPoolExecutor(1) as other:
        received = other.submit(receive)
        until(lambda: slots._waiting, 10, what="the thread to wait")
        with slots, slots.reading(beside):
            client.send(b"late")
        assert received.result(10) == b"late"
    assert slots._for_reads.acquire(blocking=False)


@pytest.mark.parametrize(
    ("method", "path", "query", "is_read"),
    [
        ("GET", "/v1/targets", "", True),
        ("GET", "/v1/targets", "events=", True),
        ("GET", "/console/events", "events=x", True),
        ("HEAD", "/metrics", "", True),
        ("GET", "/v1/events/stream", "events=put", False),
        ("GET", "/images", "events=s3:ObjectCreated:*", False),
        ("GET", "/healthz", "", False),
        ("POST", "/v1/events", "", False),
    ],
)
def test_what_may_take_long_is_a_read_and_no_query_makes_it_a_stream(
    method: str, path: str, query: str, is_read: bool
) -> None:
    assert gunicorn_worker._is_read(SimpleNamespace(method=method, path=path, query=query)) is is_read


def test_a_client_that_sends_and_reads_nothing_is_given_up(
    monkeypatch: pytest.MonkeyPatch, ends: tuple[socket.socket, socket.socket]
) -> None:
    monkeypatch.setattr(gunicorn_worker, "_PATIENCE", 0.01)
    slots = Slots(1, 1, 1)
    with slots:
        server = ClientSocket(ends[1], slots)
        with pytest.raises(ConnectionResetError, match="neither sent nor read anything"):
            server.recv(1)
        with pytest.raises(ConnectionResetError, match="neither sent nor read anything"):
            server.sendall(b"x" * 10_000_000)
        server.settimeout(0.01)
        with pytest.raises(TimeoutError):
            server.recv(1)


def test_of_unfinished_requests_that_hold_too_much_memory_the_largest_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gunicorn_worker, "_MAX_HELD_BYTES", 10)
    slots = Slots(2, 1, 9)
    pairs = [socket.socketpair() for _ in range(2)]
    servers = [ClientSocket(pair[1], slots) for pair in pairs]

    def receive(server: ClientSocket) -> bytes:
        with slots:
            return server.recv(10) and server.recv(10)

    with ThreadPoolExecutor(2) as threads:
        received = [threads.submit(receive, server) for server in servers]
        pairs[0][0].send(b"x" * 7)
        until(lambda: servers[0] in slots._waiting and servers[0].received == 7, 10, what="it to wait again")
        pairs[1][0].send(b"x" * 6)
        assert received[0].result(10) == b""
        pairs[1][0].send(b"more")
        assert received[1].result(10) == b"more"
    for pair in pairs:
        for end in pair:
            end.close()
