"""A name of which the first addresses lead nowhere, as one with a dead A record or an IPv6 that nothing routes."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests import services

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
def name_with_dead_addresses(patch: pytest.MonkeyPatch, port: int, dead: int = 1) -> Iterator[None]:
    """Let `NAME` have so many addresses that answer nothing, and then that of the servers."""
    hosts = [f"127.0.0.{number}" for number in range(2, 2 + dead)]
    usual = socket.getaddrinfo

    def resolved(host: Any, port: Any, *positional: Any, **named: Any) -> Any:
        if host not in (NAME, NAME.encode()):
            return usual(host, port, *positional, **named)
        return [entry for each in [*hosts, services.LOOPBACK] for entry in usual(each, port, *positional, **named)]

    with contextlib.ExitStack() as holes:
        for host in hosts:
            holes.enter_context(black_hole(host, port))
        patch.setattr(socket, "getaddrinfo", resolved)
        yield
