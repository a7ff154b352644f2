"""A client's connection whose waiting costs no other client anything: a slot is held only while there is work."""

import errno
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from gunicorn.sock import ssl_wrap_socket

from app.api.errors import ClientGone

_T = TypeVar("_T")
_PATIENCE = 60.0  # seconds without a byte from or to the client, after which its connection counts as lost
# That requests which are not complete, and answers, may hold in memory while their clients are waited for. Less than
# the pool that they share (`app.api.request_body`), or clients that neither send nor read keep all others from it.
_MAX_HELD_BYTES = 160 * 2**20


class Slots:
    """How many threads work at the same time, how many of them with reads, and how many may wait beside them.

    A thread enters it as a context manager, and gives its slot to another thread while its client neither sends nor
    reads, or while it waits for its turn to read. If more than `max_waiting` wait for their clients, the connection
    whose request began first is shut down; if their requests hold too much memory, the one that holds most.
    `add_threads` is told how many threads there may be more or fewer.
    """

    def __init__(
        self, working: int, reading: int, max_waiting: int, add_threads: Callable[[int], None] = lambda _number: None
    ) -> None:
        self._add_threads = add_threads
        self._free = threading.Semaphore(working)
        self._for_reads = threading.Semaphore(reading)
        self._max_waiting = max_waiting
        self._lock = threading.Lock()
        self._waiting: dict[ClientSocket, None] = {}

    def __enter__(self) -> None:
        self._free.acquire()

    def __exit__(self, *_error: object) -> None:
        self._free.release()

    @contextmanager
    def reading(self, connection: "ClientSocket") -> Iterator[None]:
        """Have the block's thread be one of those that work with reads, as soon as there is room for it."""
        if not self._for_reads.acquire(blocking=False):
            with self._without_slot():
                self._for_reads.acquire()
        connection.reads = True
        try:
            yield
        finally:
            connection.reads = False
            self._for_reads.release()

    @contextmanager
    def waiting(self, connection: "ClientSocket") -> Iterator[None]:
        """Free what the thread has during the block, in which the client is waited for."""
        with self._lock:
            self._waiting[connection] = None
            self._make_room()
        if connection.reads:
            self._for_reads.release()
        with self._without_slot():
            try:
                yield
            finally:
                with self._lock:
                    self._waiting.pop(connection, None)
                if connection.reads:
                    self._for_reads.acquire()

    @contextmanager
    def _without_slot(self) -> Iterator[None]:
        self._free.release()
        self._add_threads(1)
        try:
            yield
        finally:
            self._add_threads(-1)
            self._free.acquire()

    def _make_room(self) -> None:
        if len(self._waiting) > self._max_waiting:
            self._cut(min(self._waiting, key=lambda waiting: waiting.began))
        elif sum([waiting.held for waiting in self._waiting]) > _MAX_HELD_BYTES:
            self._cut(max(self._waiting, key=lambda waiting: waiting.held))

    def _cut(self, connection: "ClientSocket") -> None:
        del self._waiting[connection]
        connection.cut()


class ClientSocket:
    """A socket as gunicorn uses it in a thread: its calls wait for the client, but without a slot.

    A call raises `ConnectionResetError` when the client has neither sent nor read anything for a minute, and
    `TimeoutError` after the time that was set with `settimeout`. `raw` is the socket itself, which does not block.
    """

    def __init__(self, raw: socket.socket, slots: Slots) -> None:
        raw.setblocking(False)
        self.raw = raw
        self.began = 0.0  # of the request, by `time.monotonic()`
        self.received = 0  # bytes of the request
        self.unsent = 0  # bytes of the answer
        self.reads = False  # whether its request is one of the reads that are worked with
        self._slots = slots
        self._timeout: float | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)

    @property
    def held(self) -> int:
        """The bytes that the client's request or answer holds."""
        return self.unsent or self.received

    def begin(self) -> None:
        """Count time and bytes for a new request."""
        self.began, self.received = time.monotonic(), 0

    def encrypt(self, config: Any) -> None:
        """Speak TLS from now on, as gunicorn's configuration says, after the handshake."""
        self.raw = ssl_wrap_socket(self.raw, config)
        self._call(self.raw.do_handshake)  # type: ignore[attr-defined]  # a TLS socket has it

    def recv(self, size: int) -> bytes:
        """Receive up to `size` bytes; none at the end of what the client sends. Raises `ClientGone`."""
        try:
            content = self._call(lambda: self.raw.recv(size))
        except (ConnectionError, ssl.SSLEOFError) as error:
            raise ClientGone(errno.ECONNRESET, error.strerror) from None
        self.received += len(content)
        return content

    def sendall(self, content: bytes) -> None:
        """Send all of it."""
        rest = memoryview(content)
        self.unsent = len(content)
        while rest:
            rest = rest[self._call(lambda rest=rest: self.raw.send(rest), select.POLLOUT) :]  # type: ignore[misc]
        self.unsent = 0

    def send(self, content: bytes) -> int:
        """Send all of it, and return its length."""
        self.sendall(content)
        return len(content)

    def cut(self) -> None:
        """Shut the connection down, so that the thread that waits for its client goes on."""
        with suppress(OSError):  # it is lost already
            self.raw.shutdown(socket.SHUT_RDWR)

    def setblocking(self, _blocking: bool) -> None:
        """Do away with a timeout. (The calls wait for the client in any case.)"""
        self._timeout = None

    def settimeout(self, seconds: float | None) -> None:
        """Set the seconds that a call may wait for the client."""
        self._timeout = seconds

    def gettimeout(self) -> float | None:
        """Return the seconds that a call may wait for the client, if they were set."""
        return self._timeout

    def _call(self, call: Callable[[], _T], blocked: int = select.POLLIN) -> _T:
        while True:
            try:
                return call()
            except BlockingIOError:
                self._wait(blocked)
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN)
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT)

    def _wait(self, events: int) -> None:
        poll = select.poll()
        poll.register(self.raw, events)
        seconds = _PATIENCE if self._timeout is None else self._timeout
        with self._slots.waiting(self):
            ready = poll.poll(1000 * seconds)
        if not ready:
            if self._timeout is not None:
                raise TimeoutError
            raise ConnectionResetError(errno.ECONNRESET, f"the client neither sent nor read anything for {seconds:g} s")
