"""Access the socket below a database driver: detect a closed connection, and cut one whose server does not answer."""

import contextlib
import os
import select
import socket
import threading
from collections.abc import Iterator

# Seconds that we wait beyond the server's own time limit before we cut the connection.
_GRACE = 2.0


def has_spoken(descriptor: int) -> bool:
    """Return whether data arrived that nobody asked for: the server has closed the connection, or is about to."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


@contextlib.contextmanager
def deadline(descriptor: int, timeout: float) -> Iterator[None]:
    """Cut the connection when the block takes longer than `timeout` seconds and a little.

    That wakes a driver that waits for a server which is frozen or vanished silently; the driver then raises its own
    error.
    """
    watch = threading.Timer(timeout + _GRACE, _cut, (descriptor,))
    watch.daemon = True
    watch.start()
    try:
        yield
    finally:
        watch.cancel()
        watch.join()


def _cut(descriptor: int) -> None:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as wire:
        wire.shutdown(socket.SHUT_RDWR)
