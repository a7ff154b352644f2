"""Bound what requests to an OpenID Connect provider cost the API, whatever it does.

Everybody who can reach the console causes them, by beginning a sign-in.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import requests
from requests import PreparedRequest, Response

from app import socket_watchdog
from app.http_sessions import StrictAdapter

S = TypeVar("S", bound=requests.Session)
ANSWER_SECONDS = 5.0  # for one answer, from the connection to its last byte
_MAX_ANSWER_BYTES = 1 << 20
_PATIENCE_SECONDS = 2.0  # that somebody waits for the request of another one


class Busy(Exception):
    """Others wait for the provider already."""


class Turns:
    """Lets `running` threads in at a time, and `waiting` others wait shortly for their turn."""

    def __init__(self, running: int, waiting: int) -> None:
        self._running = threading.Semaphore(running)
        self._all = threading.Semaphore(running + waiting)

    @contextmanager
    def take(self) -> Iterator[None]:
        """Run the block in turn. Raises `Busy`."""
        if not self._all.acquire(blocking=False):
            raise Busy
        try:
            if not self._running.acquire(timeout=_PATIENCE_SECONDS):
                raise Busy
            try:
                yield
            finally:
                self._running.release()
        finally:
            self._all.release()


def bound(session: S, seconds: float = ANSWER_SECONDS) -> S:
    """Return the session, in which all answers together take at most so long, and none is large.

    A time limit of requests is that of one read, which a server that sends a byte a second never exceeds.
    """
    adapter = _Adapter(time.monotonic() + seconds)
    for scheme in ("http://", "https://"):
        session.mount(scheme, adapter)
    return session


def without_login() -> requests.Session:
    """Return a session that sends no login; requests would take one from a netrc file of the host."""
    session = requests.Session()
    session.auth = lambda request: request
    return session


class _Adapter(StrictAdapter):
    """Cuts its connections at a time (`time.monotonic()`)."""

    def __init__(self, ends: float) -> None:
        super().__init__(_MAX_ANSWER_BYTES)
        self.ends = ends
        self._expired = False
        self._wires: list[int] = []

    def cut(self) -> None:
        """Cut the connections, because the time is over."""
        self._expired = True
        for wire in self._wires:
            socket_watchdog.shut_down(wire)

    def get_connection_with_tls_context(self, *arguments: Any, **options: Any) -> Any:
        """Return the pool for a request, whose connections are watched."""
        pool: Any = super().get_connection_with_tls_context(*arguments, **options)
        pool.ConnectionCls = _watched(pool.ConnectionCls, self._watch)
        return pool

    def send(self, request: PreparedRequest, *arguments: Any, **options: Any) -> Response:
        """Send a request and read the answer. Raises `requests.RequestException`."""
        socket_watchdog.add(self)
        try:
            response = super().send(request, *arguments, **options)
        except requests.RequestException as error:
            if self._expired:
                raise requests.ReadTimeout("no answer in time", request=request) from error
            raise
        finally:
            socket_watchdog.remove(self)
            self.close()
            for wire in self._wires:
                os.close(wire)
            self._wires.clear()
        if self._expired:  # the end of the connection was taken for the end of the answer
            raise requests.ReadTimeout("no answer in time", request=request)
        return response

    def _watch(self, descriptor: int) -> None:
        self._wires.append(os.dup(descriptor))  # the connection may be closed, and another one get its number
        if self._expired:
            self.cut()


def _watched(kind: Any, watch: Any) -> Any:
    def new_connection(connection: Any) -> Any:
        wire = kind._new_conn(connection)
        watch(wire.fileno())
        return wire

    return type("Watched", (kind,), {"_new_conn": new_connection})
