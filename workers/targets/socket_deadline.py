"""The connection below a database driver: whether it still stands, and how it is cut when its server is silent."""

import contextlib
import os
import select
import socket
import threading
from collections.abc import Iterator

# How much longer than the server's own time limit we wait before the connection is cut.
_GRACE = 2.0


def has_spoken(descriptor: int) -> bool:
    """Whether something came unasked: the server has closed the connection, or is about to."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


@contextlib.contextmanager
def deadline(descriptor: int, timeout: float) -> Iterator[None]:
    """Cut the connection when the block takes longer than `timeout` seconds and a little.

    A driver that waits for a server which is frozen or gone without a word wakes up by that, and raises its own error.
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
