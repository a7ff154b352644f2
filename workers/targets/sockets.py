"""Access the socket below a driver: detect a closed connection, and limit the time and the bytes of an answer.

A driver's time limit is that of one read from the socket. A server that sends a byte now and then never exceeds it and
would hold a worker for ever, so a whole request has a `Deadline` too. A remote that claims, or sends, more bytes than
any answer to a request, or any message of a source's queue, has is refused before they fill the memory.
"""

import math
import os
import select
import socket
import sys
import threading
import time
from types import TracebackType
from typing import Any, Self

from app import socket_watchdog

# Seconds beyond a driver's or server's own time limit before we cut the connection: their errors name the reason.
_GRACE_SECONDS = 2.0
_LOOK_SECONDS = 0.05
_INFO_BYTES = 136  # of Linux' tcp_info, up to tcpi_bytes_received


def has_spoken(descriptor: int) -> bool:
    """Return whether data arrived that nobody asked for: the server has closed the connection, or is about to."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


class Deadline:
    """Cut the connections of a request when the block takes longer than `seconds` and a little.

    That wakes a driver that waits for a server which is frozen, vanished silently, or answers byte by byte; the driver
    then raises its own error, and `expired` is true. The connections are the one of `descriptor` and those that
    `watch` names in the block, by the same thread.
    """

    __slots__ = ("_outer", "_seconds", "_wires", "ends", "expired")

    def __init__(self, seconds: float, descriptor: int | None = None) -> None:
        self._seconds = seconds + _GRACE_SECONDS
        # Duplicates: the driver may close a connection, and another one may get its number.
        self._wires = [] if descriptor is None else [os.dup(descriptor)]
        self._outer: Deadline | None = None
        self.ends = math.inf
        self.expired = False

    def __enter__(self) -> Self:
        self._outer, _current.deadline = _current.deadline, self
        self.restart()
        socket_watchdog.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _current.deadline = self._outer
        socket_watchdog.remove(self)
        for wire in self._wires:
            os.close(wire)

    def restart(self) -> None:
        """Let the time begin again, because the server has answered."""
        self.ends = time.monotonic() + self._seconds

    def watch(self, descriptor: int) -> None:
        """Cut this connection too, at once if the time is over."""
        self._wires.append(os.dup(descriptor))
        if self.expired:
            self.cut()

    def cut(self) -> None:
        """Cut the connections."""
        self.expired = True
        for descriptor in self._wires:
            socket_watchdog.shut_down(descriptor)


class BoundedDeadline(Deadline):
    """Cut the connection of `descriptor` also once it has received more than `limit` bytes in the block.

    For drivers in whose reading nobody has a say. The system is asked how many it were, some times a second.
    """

    __slots__ = ("_before", "_last", "_limit", "is_flooded")

    def __init__(self, seconds: float, descriptor: int, limit: int) -> None:
        super().__init__(seconds, descriptor)
        self._limit = limit
        self._before = received_bytes(descriptor)
        self._last = math.inf
        self.is_flooded = False

    def restart(self) -> None:
        """Let the time begin again."""
        super().restart()
        self._last = self.ends
        self._look_again()

    def cut(self) -> None:
        """Cut the connection if the time is over, or too much has come."""
        self.is_flooded = received_bytes(self._wires[0]) - self._before > self._limit
        if self.is_flooded or time.monotonic() >= self._last:
            super().cut()
        else:
            self._look_again()

    def _look_again(self) -> None:
        self.ends = min(self._last, time.monotonic() + _LOOK_SECONDS)


def received_bytes(descriptor: int) -> int:
    """Return how many bytes a TCP socket has received; 0 for another one."""
    try:
        wire = socket.socket(fileno=descriptor)
    except OSError:
        return 0
    try:
        info = wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        return int.from_bytes(info[_INFO_BYTES - 8 :], sys.byteorder)
    except OSError:
        return 0
    finally:
        wire.detach()


def watch(descriptor: int) -> None:
    """Have this connection cut by the `Deadline` of the calling thread, if it has one."""
    if _current.deadline is not None:
        _current.deadline.watch(descriptor)


def is_over() -> bool:
    """Return whether the time of the calling thread's `Deadline` is over, if it has one."""
    return _current.deadline is not None and time.monotonic() >= _current.deadline.ends


class _Current(threading.local):
    deadline: Deadline | None = None


_current = _Current()


MAX_ANSWER_BYTES = 16 << 20
MAX_MESSAGE_BYTES = 64 << 20  # NATS' largest; a request to the API is no larger either


class AnswerTooLong(OSError):
    """The remote sends more than any answer has. Drivers treat it as a lost connection."""

    def __init__(self, limit: int, claimed: int = 0) -> None:
        super().__init__(
            f"the remote claims an answer of {claimed:,} bytes, more than {limit:,}"
            if claimed
            else f"the remote sends an answer of more than {limit:,} bytes"
        )


class LimitedSocket:
    """A connected socket by which at most `limit` bytes come after each send. Then it raises `AnswerTooLong`."""

    def __init__(self, socket: Any, limit: int) -> None:
        self.socket = socket
        self.problem: AnswerTooLong | None = None
        self._limit = self._left = limit

    def __getattr__(self, name: str) -> Any:
        return getattr(self.socket, name)

    def recv(self, *arguments: Any) -> bytes:
        """Receive bytes."""
        received: bytes = self.socket.recv(*arguments)
        self._count(len(received))
        return received

    def recv_into(self, *arguments: Any) -> int:
        """Receive bytes into a buffer."""
        count: int = self.socket.recv_into(*arguments)
        self._count(count)
        return count

    def send(self, *arguments: Any) -> int:
        """Send bytes; the limit begins again."""
        self._left = self._limit
        return int(self.socket.send(*arguments))

    def sendall(self, *arguments: Any) -> None:
        """Send all bytes; the limit begins again."""
        self._left = self._limit
        self.socket.sendall(*arguments)

    def _count(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            self.problem = AnswerTooLong(self._limit)
            raise self.problem
