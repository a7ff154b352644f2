"""A name of which the first addresses lead nowhere, as one with a dead A record or an IPv6 that nothing routes."""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests import services

Kind = Callable[[str, int], contextlib.AbstractContextManager[None]]

_numbers = itertools.count(2)  # a port of an address that was used may be taken for a while
NAME = "two_fold.test"  # with `_`, as names of services in Compose and Swarm may have it


@contextlib.contextmanager
def black_hole(host: str, port: int) -> Iterator[None]:
    """An address of this machine that answers no connection: a listening socket whose backlog is full."""
    with contextlib.ExitStack() as open_sockets:
        listening = open_sockets.enter_context(socket.socket())
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(0)
        for _ in range(4):  # of which the system takes one or two
            waiting = open_sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex((host, port))
        yield


@contextlib.contextmanager
def hanging_up(host: str, port: int) -> Iterator[None]:
    """An address that closes each connection, as a proxy without a server behind it."""
    with _accepting(host, port, lambda connection: connection.close()):
        yield


@contextlib.contextmanager
def resetting(host: str, port: int) -> Iterator[None]:
    """An address that resets each connection as soon as something comes by it."""

    def reset(connection: socket.socket) -> None:
        connection.settimeout(0.2)
        with contextlib.suppress(OSError):
            connection.recv(1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    with _accepting(host, port, reset):
        yield


@contextlib.contextmanager
def silent(host: str, port: int) -> Iterator[None]:
    """An address that accepts connections, and then says nothing."""
    kept: list[socket.socket] = []
    with _accepting(host, port, kept.append):
        yield
    for connection in kept:
        connection.close()


@contextlib.contextmanager
def _accepting(host: str, port: int, serve: Callable[[socket.socket], None]) -> Iterator[None]:
    with socket.create_server((host, port)) as listening:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    serve(listening.accept()[0])

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(30)


@contextlib.contextmanager
def name_with_dead_addresses(
    patch: pytest.MonkeyPatch, port: int, dead: int = 1, kind: Kind = black_hole
) -> Iterator[None]:
    """Let `NAME` have so many dead addresses of this kind, and then that of the servers."""
    hosts = [f"127.0.{number >> 8}.{number & 255}" for number in itertools.islice(_numbers, dead)]
    usual = socket.getaddrinfo

    def resolved(host: Any, port: Any, *positional: Any, **named: Any) -> Any:
        if host not in (NAME, NAME.encode()):
            return usual(host, port, *positional, **named)
        return [entry for each in [*hosts, services.LOOPBACK] for entry in usual(each, port, *positional, **named)]

    with contextlib.ExitStack() as holes:
        for host in hosts:
            holes.enter_context(kind(host, port))
        patch.setattr(socket, "getaddrinfo", resolved)
        yield
