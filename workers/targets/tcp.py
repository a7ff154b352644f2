"""Connect to a name: to each of its addresses in turn, within one time limit for all of them.

An address that answers nothing, such as an IPv6 that is not routed or a server that is gone, leaves time for the
others: each gets an equal share of what is left. One that accepts the connection and closes it without a byte, or is
silent until its share is over, is remembered, and tried after the name's others for a minute: see `Attempt`.

An `Endpoint` is an address that a target connects to. The checks of its name, connection and TLS need no target
protocol. Where TLS begins within a protocol (NATS, NSQ, PostgreSQL, MySQL) it is part of logging in, and only the
adapter can check it. `NodeRotation` says which of several nodes comes next.

Connections to link-local addresses are refused while a target is called that a limited token may set. There the clouds'
metadata services are, and neighbours that take whoever reaches them for trusted. What counts is the address of each
connection, whatever named it: the settings, DNS, a broker's advertised address, a cluster's other node.
"""

import os
import socket
import ssl
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, NamedTuple, Self, TypeVar

from app import socket_watchdog
from app.config.fields.addresses import HostPort
from app.config.networks import is_link_local
from workers.targets.sockets import received_bytes

T = TypeVar("T")
Place = tuple[str, int]

_REMEMBERED_SECONDS = 60.0
_MAX_REMEMBERED = 1_000

OPTIONS = ((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1))


def connect(host: str, port: int, timeout: float | None, options: Sequence[Any] = ()) -> socket.socket:
    """Return a connection with the socket `options` set, which may be no more than `timeout` seconds away.

    The timeout of the socket is then `timeout` too. Raises `OSError`, the one of the last address.
    """
    entries = ordered(socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM))
    ends = None if timeout is None else time.monotonic() + timeout
    failure = OSError("the name has no address")
    for left, (family, kind, protocol, _, address) in zip(range(len(entries), 0, -1), entries, strict=True):
        opened = socket.socket(family, kind, protocol)
        try:
            for option in options:
                opened.setsockopt(*option)
            opened.settimeout(None if ends is None else share(ends, left))
            opened.connect(address)
            opened.settimeout(timeout)
        except OSError as error:
            opened.close()
            failure = error
        else:
            made(opened.fileno(), places(entries)[-left], places(entries))
            return opened
    raise failure


def share(ends: float, left: int) -> float:
    """Return the seconds for the next of `left` addresses, if the time for all ends then, by `time.monotonic`."""
    return max(0.01, (ends - time.monotonic()) / left)


def places(entries: Iterable[Any]) -> list[Place]:
    """Return the addresses and ports in what `getaddrinfo` returns."""
    return [(str(entry[4][0]), int(entry[4][1])) for entry in entries]


def ordered(entries: Iterable[T], place: Callable[[T], Place] = lambda entry: places([entry])[0]) -> list[T]:
    """Return the addresses of a name in the order in which they are tried: those that are remembered come last."""
    return sorted(entries, key=lambda entry: _is_remembered(place(entry)))


def made(descriptor: int, place: Place, of_name: Sequence[Place]) -> None:
    """Have an `Attempt` know of a connection to one of the addresses of a name."""
    if len(set(of_name)) > 1 and (attempt := getattr(_local, "attempt", None) or (_active[-1] if _active else None)):
        attempt.add(descriptor, place, of_name)


class Attempt:
    """What is attempted in a block, which finds addresses that accept a connection and then say nothing.

    It knows of the connections that its thread makes, and those of drivers' threads. With `seconds`, the time limit of
    the attempt, an address that is silent for its share of them is cut off, as long as the name has others to try.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = seconds
        self._made: list[_Made] = []
        self._outer: Attempt | None = None

    def __enter__(self) -> Self:
        self._outer, _local.attempt = getattr(_local, "attempt", None), self
        _active.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _active.remove(self)
        _local.attempt = self._outer
        for one in self._made:
            socket_watchdog.remove(one.first_byte)
            os.close(one.first_byte.wire)

    def add(self, descriptor: int, place: Place, of_name: Sequence[Place]) -> None:
        """Take in a connection, also for the attempt of which this one is a part."""
        if self._outer is not None:
            self._outer.add(descriptor, place, of_name)
        untried = sum(not _is_remembered(other) for other in of_name)
        first_byte = _FirstByte(os.dup(descriptor))
        self._made.append(_Made(first_byte, place, of_name))
        if self._seconds is not None and untried > 1:
            first_byte.ends = time.monotonic() + self._seconds / untried
            socket_watchdog.add(first_byte)

    def passes_over(self) -> bool:
        """Remember the addresses that have said nothing; return whether the attempt may reach another one now."""
        others = False
        for first_byte, place, of_name in self._made:
            if received_bytes(first_byte.wire) > _FIN:
                _remembered.pop(place, None)
            elif not _is_remembered(place):
                if len(_remembered) >= _MAX_REMEMBERED:
                    _remembered.clear()
                _remembered[place] = time.monotonic() + _REMEMBERED_SECONDS
                others |= not all(map(_is_remembered, of_name))
        return others


def reaching(attempt: Callable[[], T], seconds: float | None = None) -> T:
    """Return what `attempt` returns, which is called again while it fails at an address that says nothing.

    Its errors leave it once the name has no other address. `seconds` are those of `Attempt`.
    """
    while True:
        with Attempt(seconds) as tried:
            try:
                return attempt()
            except Exception:
                if not tried.passes_over():
                    raise


class _FirstByte:
    """A connection, by a descriptor of its own, that is cut unless something has come by it."""

    def __init__(self, wire: int) -> None:
        self.wire = wire
        self.ends = 0.0

    def cut(self) -> None:
        """Cut the connection if nothing has come."""
        if received_bytes(self.wire) <= _FIN:
            socket_watchdog.shut_down(self.wire)


class _Made(NamedTuple):
    first_byte: _FirstByte
    place: Place
    of_name: Sequence[Place]


def _is_remembered(place: Place) -> bool:
    return _remembered.get(place, 0.0) > time.monotonic()


_FIN = 1  # the system counts the end of a connection as a byte
_local = threading.local()
_active: list[Attempt] = []  # for the threads of drivers
_remembered: dict[Place, float] = {}  # until when


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address to connect to; a host that begins with `/` is a unix socket.

    `context` creates the TLS context if TLS begins with the first byte, and `name` is the name that the certificate
    must match, if it is not the host.
    """

    address: HostPort
    context: Callable[[], ssl.SSLContext] | None = None
    name: str = ""

    def resolve(self) -> list[str]:
        """Return the addresses of the host. Raises `OSError`."""
        host, port = self.address
        if host.startswith("/"):
            return [host]
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(entry[4][0]) for entry in infos))

    def connect(self, addresses: Sequence[str], timeout: float) -> socket.socket:
        """Connect to the first address that accepts a connection, within `timeout` seconds. Raises `OSError`."""
        failure = OSError("there is no address to connect to")
        ends = time.monotonic() + timeout
        for left, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
            try:
                if address.startswith("/"):
                    return _unix(address, timeout)
                opened = connect(address, self.address.port, share(ends, left))
            except OSError as error:
                failure = error
            else:
                opened.settimeout(timeout)
                return opened
        raise failure


def tls_handshake(wire: socket.socket, context: ssl.SSLContext, name: str) -> str:
    """Start TLS over the connection; return the TLS version and the cipher. Raises `OSError`."""
    with context.wrap_socket(wire, server_hostname=name) as wrapped:
        cipher = wrapped.cipher()
        return f"{wrapped.version()}, {cipher[0]}" if cipher else str(wrapped.version())


def _unix(path: str, timeout: float) -> socket.socket:
    wire = socket.socket(socket.AF_UNIX)
    try:
        wire.settimeout(timeout)
        wire.connect(path)
    except OSError:
        wire.close()
        raise
    return wire


N = TypeVar("N")
C = TypeVar("C")


class NodeRotation(Generic[N]):
    """The nodes, of which the first is connected to; one that cannot be reached becomes the last."""

    def __init__(self, nodes: Iterable[N], timeout: float) -> None:
        """`timeout` is in seconds: after it no further node is tried, so that nodes that hang do not add up."""
        self._nodes = deque(nodes)
        self._timeout = timeout

    def connect(self, connect: Callable[[N], C], errors: type[Exception] | tuple[type[Exception], ...]) -> C:
        """Return the connection to the first node to which `connect` makes one. Raises its last one of `errors`."""
        ends = time.monotonic() + self._timeout
        tried = 0
        while True:
            tried += 1
            try:
                return connect(self._nodes[0])
            except errors:
                self._nodes.rotate(-1)
                if tried == len(self._nodes) or time.monotonic() >= ends:
                    raise


class LinkLocalAddress(OSError):
    """A connection to a link-local address was refused."""

    def __init__(self, address: str) -> None:
        super().__init__(f"{address} is link-local, where a target of a limited token may not be")


class _Guard:
    """Of this process, whose threads call one target at a time."""

    is_installed = False
    is_on = False


@contextmanager
def refusing_link_local(*, when: bool) -> Iterator[None]:
    """Have every connection of this process to such an address raise `LinkLocalAddress` until the block ends."""
    if when and not _Guard.is_installed:
        sys.addaudithook(_check)  # it stays, so a process that never needs it has none
        _Guard.is_installed = True
    _Guard.is_on = when
    try:
        yield
    finally:
        _Guard.is_on = False


def refuses_link_local() -> bool:
    """Return whether such connections are refused now."""
    return _Guard.is_on


def not_link_local(address: str) -> str:
    """Return an address. Raises `LinkLocalAddress`."""
    if is_link_local(address):
        raise LinkLocalAddress(address)
    return address


def _check(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "socket.connect" or not _Guard.is_on or not isinstance(arguments[1], tuple):  # a unix socket's is text
        return
    host = str(arguments[1][0])
    try:
        not_link_local(host)
    except ValueError:  # a name
        for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
            not_link_local(str(entry[4][0]))
