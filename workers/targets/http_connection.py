"""HTTP connections that distinguish "not connected" from "no answer", and may refuse addresses that are not public."""

import socket
import ssl
import time
from collections.abc import Callable
from typing import Any

from urllib3.connection import HTTPConnection
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NameResolutionError, NewConnectionError

from app.config.networks import is_public
from app.http_pools import StrictConnection, StrictTlsConnection
from workers.targets import socket_deadline, tcp


class PrivateAddressError(HTTPError):
    """The name resolves to an address that is not public."""


def public_addresses(host: str, port: int) -> list[str]:
    """Return all addresses of a name. Raises `PrivateAddressError` if one is not public, `OSError` of the resolver."""
    addresses = _addresses(host, port)
    for address in addresses:
        if not is_public(address):
            named = address if host.strip("[]") == address else f"{host} is {address}, which"
            raise PrivateAddressError(f"{named} is not a public address; set allow_private=on if that is meant")
    return addresses


def _addresses(host: str, port: int) -> list[str]:
    infos = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in infos))


class _GuardedConnection(StrictConnection, HTTPConnection):
    """A connection that, if `guarded`, is only made to public addresses; a `Deadline` cuts it."""

    def __init__(self, *positional: Any, guarded: bool = False, **options: Any) -> None:
        super().__init__(*positional, **options)
        self.guarded = guarded

    def _new_conn(self) -> socket.socket:
        made = _socket(self, super()._new_conn)
        socket_deadline.watch(made.fileno())
        return made

    def request(self, *request: Any, **options: Any) -> None:
        """Send a request, over a new connection or the one of the request before."""
        if self.sock is not None:
            socket_deadline.watch(self.sock.fileno())
        super().request(*request, **options)


class PlainConnection(_GuardedConnection):
    """Reports every failure before the request was sent as a connection error; `guarded` as in `http_pool`."""

    def connect(self) -> None:
        """Connect. Raises `ConnectTimeoutError` or `NewConnectionError`."""
        try:
            super().connect()
        except TimeoutError as error:
            raise ConnectTimeoutError(self, f"no connection within {self.timeout} s") from error
        except OSError as error:
            raise NewConnectionError(self, str(error)) from error


class TlsConnection(_GuardedConnection, StrictTlsConnection):
    """Like `PlainConnection`, with TLS."""

    def connect(self) -> None:
        """Connect. Raises `ConnectTimeoutError`, `NewConnectionError` or `ssl.SSLError`."""
        try:
            super().connect()
        except TimeoutError as error:
            raise ConnectTimeoutError(self, f"no TLS connection within {self.timeout} s") from error
        except ssl.SSLError:
            raise
        except OSError as error:
            raise NewConnectionError(self, str(error)) from error
        # urllib3 warns about each request on an unverified connection; here the settings ask for one.
        self.is_verified = True


def _socket(connection: _GuardedConnection, connect: Callable[[], socket.socket]) -> socket.socket:
    """Resolve once, check every address if it is `guarded`, and connect to exactly these addresses.

    The name is not resolved again. An address that answers nothing leaves time for the others, as in `tcp.connect`.
    """
    name, timeout = connection._dns_host, connection.timeout
    try:
        addresses = (public_addresses if connection.guarded else _addresses)(name, connection.port)
    except OSError as error:
        raise NameResolutionError(name, connection, error) from error  # type: ignore[arg-type]  # getaddrinfo's own
    places = tcp.ordered([(address, connection.port) for address in addresses], lambda place: place)
    failure: Exception = NewConnectionError(connection, f"{name} has no address")
    ends = time.monotonic() + timeout if isinstance(timeout, int | float) else None
    try:
        for left, place in zip(range(len(places), 0, -1), places, strict=True):
            connection.host = place[0]
            if ends is not None:
                connection.timeout = tcp.share(ends, left)
            try:
                opened = connect()
            except (NewConnectionError, ConnectTimeoutError) as error:
                failure = error
            else:
                opened.settimeout(timeout)
                tcp.made(opened.fileno(), place, places)
                return opened
    finally:
        connection.host = name  # TLS and the Host header use this name
        connection.timeout = timeout
    raise failure
