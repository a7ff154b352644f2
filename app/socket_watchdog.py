"""Cut the connections of what takes too long: one thread for each process, for the outbox's drivers and the targets'.

A driver's time limit is that of one read from its socket, or it has none. A server that is frozen, has vanished
silently or sends a byte now and then would hold a process for ever. Cutting the socket wakes the driver, which then
raises its own error.

So the answers of the task broker are limited too, if that is a Redis: one that sends a byte a second would hold a
worker's loop, and each request that waits for the broker.
"""

import contextlib
import math
import os
import socket
import threading
import time
from typing import Any, Protocol


class Limited(Protocol):
    """What may last until `ends` (`time.monotonic()`); `cut` is called if it lasts longer, and must be short."""

    ends: float

    def cut(self) -> None:
        """Cut the connections, or let it last until a later `ends`."""


class LimitedSocket:
    """A socket from which is read until a time from now; then it is shut down, so that the reader goes on.

    Not by its descriptor: a reader that fails may close it before it is watched no more, and another one may have got
    the number. `wire` may be replaced, such as by the same connection with TLS.
    """

    def __init__(self, wire: socket.socket, seconds: float) -> None:
        self.wire = wire
        self.ends = time.monotonic() + seconds

    def cut(self) -> None:
        """Shut the socket down."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.wire, socket.SHUT_RDWR)  # that of TLS would disturb the reader


def add(limited: Limited) -> None:
    """Watch this until it is removed or its time is over."""
    _watchdog.add(limited)


def remove(limited: Limited) -> None:
    """Watch this no more. It is not being cut when this returns, so its descriptors may be closed."""
    _watchdog.remove(limited)


def shut_down(descriptor: int) -> None:
    """Shut a socket down that its owner is going to close; nothing happens if it is none."""
    with contextlib.suppress(OSError, ValueError):
        wire = socket.socket(fileno=descriptor)
        try:
            wire.shutdown(socket.SHUT_RDWR)
        finally:
            wire.detach()


class _Watchdog:
    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._watched: set[Limited] = set()
        self._wakes = math.inf  # when the thread looks again
        self._is_running = False

    def add(self, limited: Limited) -> None:
        with self._changed:
            self._watched.add(limited)
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, name="socket-watchdog", daemon=True).start()
            elif limited.ends < self._wakes:  # rare: most end before the thread looks
                self._changed.notify()

    def remove(self, limited: Limited) -> None:
        with self._changed:
            self._watched.discard(limited)

    def _run(self) -> None:
        with self._changed:  # also while it cuts, or another connection could have got the descriptor
            while True:
                now = time.monotonic()
                for limited in [each for each in self._watched if each.ends <= now]:
                    self._watched.discard(limited)
                    limited.cut()
                    if limited.ends > now:
                        self._watched.add(limited)
                self._wakes = min((each.ends for each in self._watched), default=math.inf)
                self._changed.wait(None if self._wakes == math.inf else max(0.0, self._wakes - now))


_watchdog = _Watchdog()


def _forked() -> None:
    """Start with a new watchdog, because a forked child has none of its parent's threads."""
    global _watchdog  # noqa: PLW0603 - one for each process is the point
    _watchdog = _Watchdog()


os.register_at_fork(after_in_child=_forked)


_GRACE_SECONDS = 1.0  # beyond the limit of a read: its error says that nothing came, and not that Redis has closed


class _LimitedAnswers:
    """A connection whose answers take little longer as a whole than a read may, `socket_timeout`."""

    def read_response(self, *arguments: Any, **options: Any) -> Any:
        """Read an answer. Raises the connection's errors."""
        wire, seconds = self._sock, self.socket_timeout  # type: ignore[attr-defined]  # of the connection
        if wire is None or not seconds:
            return super().read_response(*arguments, **options)  # type: ignore[misc]  # which it is mixed into
        answer = LimitedSocket(wire, seconds + _GRACE_SECONDS)
        add(answer)
        try:
            return super().read_response(*arguments, **options)  # type: ignore[misc]  # as above
        finally:
            remove(answer)


def limited_connection(connection: type[Any]) -> type[Any]:
    """Return a class of such connections with limited answers."""
    return (
        connection
        if issubclass(connection, _LimitedAnswers)
        else type(connection.__name__, (_LimitedAnswers, connection), {})
    )


def limit_answers(channel: Any) -> None:
    """Have the connections be limited that this class of kombu's channels makes from now on in this process."""
    if channel in _CHANNELS:
        return
    _CHANNELS.add(channel)
    usual: Any = channel._connparams  # kombu has no other place for the class of a socket file

    def parameters(self: Any, asynchronous: bool = False) -> dict[str, Any]:
        chosen: dict[str, Any] = usual(self, asynchronous)
        return chosen | {"connection_class": limited_connection(chosen["connection_class"])}

    channel._connparams = parameters


_CHANNELS = set[type]()  # whose connections are limited
