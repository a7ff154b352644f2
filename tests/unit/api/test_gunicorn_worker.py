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

from app.api.listen.gunicorn_worker import Worker


@pytest.fixture
def worker() -> Iterator[Worker]:
    """A worker of one thread, without anything else of gunicorn."""
    made = Worker.__new__(Worker)
    with ThreadPoolExecutor(1) as made.tpool:
        yield made


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The client's end of a connection, and the server's."""
    client, server = socket.socketpair()
    with client, server:
        yield client, server


def connection(sock: socket.socket, *, read_ahead: bytes = b"", is_http2: bool = False) -> Any:
    unreader = SimpleNamespace(buf=io.BytesIO(read_ahead))
    return SimpleNamespace(sock=sock, is_http2=is_http2, parser=SimpleNamespace(unreader=unreader))


def test_it_takes_a_request_that_has_come_and_waits_for_none_for_long(
    worker: Worker, ends: tuple[socket.socket, socket.socket]
) -> None:
    client, server = ends
    assert not worker._comes_next(connection(server))
    client.send(b"GET / HTTP/1.1\r\n")
    assert worker._comes_next(connection(server))


def test_it_takes_none_while_another_request_waits_for_a_thread(
    worker: Worker, ends: tuple[socket.socket, socket.socket]
) -> None:
    client, server = ends
    client.send(b"GET / HTTP/1.1\r\n")
    over = threading.Event()
    handled = worker.tpool.submit(over.wait)
    other = worker.tpool.submit(over.wait)
    try:
        assert not worker._comes_next(connection(server))
    finally:
        over.set()
    assert (handled.result(), other.result()) == (True, True)
    assert worker._comes_next(connection(server))


@pytest.mark.parametrize("state", [{"read_ahead": b"GET"}, {"is_http2": True}])
def test_gunicorn_itself_goes_on_with_what_it_has_read_ahead_and_with_http2(
    worker: Worker, ends: tuple[socket.socket, socket.socket], state: dict[str, Any]
) -> None:
    client, server = ends
    client.send(b" / HTTP/1.1\r\n")
    assert not worker._comes_next(connection(server, **state))
