"""Connect to a name: to each of its addresses in turn, within one time limit for all of them.

An address that answers nothing, such as an IPv6 that is not routed or a server that is gone, leaves time for the
others: each gets an equal share of what is left.
"""

import socket
import time
from collections.abc import Sequence
from typing import Any

OPTIONS = ((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1))


def connect(host: str, port: int, timeout: float | None, options: Sequence[Any] = ()) -> socket.socket:
    """Return a connection with the socket `options` set, which may be no more than `timeout` seconds away.

    The timeout of the socket is then `timeout` too. Raises `OSError`, the one of the last address.
    """
    entries = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
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
            return opened
    raise failure


def share(ends: float, left: int) -> float:
    """Return the seconds for the next of `left` addresses, if the time for all ends then, by `time.monotonic`."""
    return max(0.01, (ends - time.monotonic()) / left)
