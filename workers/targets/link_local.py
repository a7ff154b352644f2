"""Refuse connections to link-local addresses while a target is called that a limited token may set.

There the clouds' metadata services are, and neighbours that take whoever reaches them for trusted. What counts is the
address of each connection, whatever named it: the settings, DNS, a broker's advertised address, a cluster's other node.
"""

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from app.config.networks import is_link_local


class LinkLocalAddress(OSError):
    """A connection to a link-local address was refused."""

    def __init__(self, address: str) -> None:
        super().__init__(f"{address} is link-local, where a target of a limited token may not be")


class _Guard:
    """Of this process, whose threads call one target at a time."""

    is_installed = False
    is_on = False


@contextmanager
def refusing(*, when: bool) -> Iterator[None]:
    """Have every connection of this process to such an address raise `LinkLocalAddress` until the block ends."""
    if when and not _Guard.is_installed:
        sys.addaudithook(_check)  # it stays, so a process that never needs it has none
        _Guard.is_installed = True
    _Guard.is_on = when
    try:
        yield
    finally:
        _Guard.is_on = False


def is_refusing() -> bool:
    """Return whether such connections are refused now."""
    return _Guard.is_on


def checked(address: str) -> str:
    """Return an address. Raises `LinkLocalAddress`."""
    if is_link_local(address):
        raise LinkLocalAddress(address)
    return address


def _check(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "socket.connect" or not _Guard.is_on or not isinstance(arguments[1], tuple):  # a unix socket's is text
        return
    host = str(arguments[1][0])
    try:
        checked(host)
    except ValueError:  # a name
        for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
            checked(str(entry[4][0]))
