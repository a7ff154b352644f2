"""Gunicorn's threaded worker, extended: a request can hand its connection over, and no client makes others wait.

A client's connection costs no other client anything while it waits: a slot is held only while there is work.
"""

import errno
import logging
import re
import select
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, TypeVar

from gunicorn import http, util
from gunicorn.sock import ssl_wrap_socket
from gunicorn.workers.gthread import STOP_KEEPALIVE_LINGER, TConn, ThreadWorker

from app.api.errors import ClientGone
from app.api.listen.broadcaster import SocketHandedOver
from app.api.services import services_of
from app.api.wsgi_layers import PROBES, PROTECTION, stopping
from app.logs import Repetitions

_FIRST_REQUEST = 1  # milliseconds
_NEXT_REQUEST = 100  # milliseconds
_READS = 8  # an eighth of the threads may work with reads: they take the interpreter's time from posts
_MAX_WAITING_THREADS = 500  # threads that may wait for their clients, beside those that work
# Bytes that the kernel keeps of answers that a client does not read; it takes twice that, and by itself megabytes.
_SEND_BUFFER = 256 * 1024
_LINGER = 2.0  # seconds that a client has to close its side of a connection
_MAX_DRAINED_BYTES = 1 << 16  # bytes that a client may send meanwhile
# What is kept of gunicorn's messages that go on with the text of a request; an error of TLS has none.
_KEPT = re.compile(r"Invalid request from ip=\S+: (?P<problem>\[SSL.*|[\w /()>-]*)|Error handling request [^?]*")
_NO_CONNECTION = (errno.EAGAIN, errno.ECONNABORTED)
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
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


def _write_error(count: Callable[[int], None], sock: Any, status: int, reason: str, message: str) -> None:
    """Answer a request that no application gets, as gunicorn does, in text and with the headers of every answer."""
    count(status)
    body = f"{message or reason}\n".encode("latin-1", "replace")
    headers = {"Connection": "close", "Content-Type": "text/plain; charset=latin-1", "Content-Length": len(body)}
    lines = (f"{name}: {value}" for name, value in (headers | dict(PROTECTION)).items())
    head = "\r\n".join([f"HTTP/1.1 {status} {reason}", *lines, "", ""])
    util.write_nonblock(sock, head.encode("latin-1") + body)


class _WithoutRequests(logging.Filter):
    """Keeps what a client has sent out of the log: its address, or a malformed header, may have a token.

    Of lines about malformed requests, of which any client can send many, it keeps one a minute of each kind.
    """

    def __init__(self) -> None:
        super().__init__()
        self._repetitions = Repetitions()

    def filter(self, record: logging.LogRecord) -> bool:
        """Shorten what gunicorn says of a request that it cannot read, or that has failed."""
        if kept := _KEPT.match(record.getMessage()):
            record.msg, record.args = kept[0], ()
            if problem := kept["problem"]:
                record.__dict__["requests"] = number = self._repetitions.take(problem)
                return bool(number)
        return True


logging.getLogger("gunicorn.error").addFilter(_WithoutRequests())


class _Connection(TConn):  # type: ignore[misc]  # gunicorn ships no types
    """A connection, of HTTP/1, whose socket waits for its client without a slot."""

    initialized: bool
    data_ready: bool

    def __init__(self, cfg: Any, sock: socket.socket, client: Any, server: Any, slots: Slots) -> None:
        super().__init__(cfg, ClientSocket(sock, slots), client, server)
        self.drained = 0

    def wait_for_data(self, timeout: float) -> bool:  # noqa: ARG002 - gunicorn's, which waits for longer
        """Return whether something has come, or comes within a millisecond; if not, the main thread waits for it."""
        self.data_ready = self.data_ready or _comes_within(self.sock, _FIRST_REQUEST)
        return bool(self.data_ready)

    def init(self) -> None:
        """Make the TLS handshake, if there is one, before the first request."""
        if not self.initialized:
            self.initialized = True
            if self.cfg.is_ssl:
                self.sock.encrypt(self.cfg)
            self.parser = http.get_parser(self.cfg, self.sock, self.client)


def _comes_within(sock: ClientSocket, milliseconds: int) -> bool:
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return bool(poll.poll(milliseconds))


def _is_read(request: Any) -> bool:
    """Return whether an answer may take long to make: not that of a probe, nor the beginning of a stream."""
    if request.method not in ("GET", "HEAD") or request.path in PROBES:
        return False
    if request.path.startswith(("/v1/", "/console")):  # where `events` is no listener of the S3 API
        return bool(request.path != "/v1/events/stream")
    return "events=" not in request.query


class Worker(ThreadWorker):  # type: ignore[misc]  # gunicorn ships no types
    """Gunicorn's `gthread`, with these differences.

    A connection that was handed over is neither closed nor counted any more. A worker whose parent was killed stops
    listening at once, and then answers what it has begun. And a thread that has answered waits for a moment for the
    next request of the same connection, if few do: busy senders keep their threads, and the main thread is not in their
    way.

    No client makes others wait: a connection that sends nothing has no thread for long, a thread that waits for its
    client does not count as one of the `threads`, of which reads may have a few, and the main thread does not wait
    until a client has closed its side of a connection. If there are too many connections, one that is idle is closed
    for each new one.
    """

    sockets: list[Any]  # those that it listens on

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        threads = self.cfg.threads
        self._slots = Slots(threads, max(1, threads // _READS), _MAX_WAITING_THREADS, self._add_threads)
        self._staying = threading.Semaphore(threads)  # threads that wait for the next request of their connection
        self._lingering: dict[_Connection, None] = {}  # the oldest first
        self._lacks_descriptors = False

    def load_wsgi(self) -> None:
        """Load the application, and have it count the requests that it does not get."""
        super().load_wsgi()
        util.write_error = partial(_write_error, services_of(self.wsgi).request_counts.count_unread)

    def _add_threads(self, number: int) -> None:
        """Let the pool have so many threads more, or fewer: those that wait for their clients come on top."""
        pool = self.tpool
        with pool._shutdown_lock:
            pool._max_workers += number
            if number > 0 and pool._work_queue.qsize() and not pool._shutdown:
                pool._adjust_thread_count()

    def accept(self, listener: Any) -> bool:
        """Accept a connection, and hand it to a thread; return whether there was one."""
        try:
            client, address = listener.accept()
        except OSError as error:
            self._lacks_descriptors = error.errno in _NO_DESCRIPTOR
            if error.errno not in (*_NO_CONNECTION, *_NO_DESCRIPTOR):
                raise
            return False
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        self.nr_conns += 1
        self.enqueue_req(_Connection(self.cfg, client, address, listener.getsockname(), self._slots))
        return True

    def set_accept_enabled(self, enabled: bool) -> None:
        """Accept connections, or none for now; a worker that ends accepts those that wait, and closes its sockets.

        Otherwise the kernel would reset them when the last worker closes the socket, with the requests that they carry;
        and it would go on to take connections that nobody accepts any more.
        """
        super().set_accept_enabled(enabled)
        if not self.alive:
            for listener in self.sockets:
                for _ in range(self.cfg.backlog):  # more do not wait
                    if not self.accept(listener):
                        break
                listener.close()
            self.sockets = []

    def handle(self, conn: Any) -> Any:
        """Handle a request, and those of the same connection that follow at once."""
        while True:
            with self._slots:
                conn.sock.begin()
                result = super().handle(conn)
            if result is not True or not self._comes_next(conn):
                return result

    def _comes_next(self, conn: Any) -> bool:
        """Return whether the connection has its next request in a moment; what was read ahead queues up with others."""
        if conn.parser.unreader.buf.getvalue() or not self._staying.acquire(blocking=False):
            return False
        self._add_threads(1)
        try:
            return _comes_within(conn.sock, _NEXT_REQUEST)
        finally:
            self._add_threads(-1)
            self._staying.release()

    def finish_request(self, conn: Any, fs: "Future[Any]") -> None:
        """Wait for the next request of a connection, or close it."""
        if fs.cancelled() or fs.exception() or fs.result():
            if not self.alive and not conn.initialized:  # gunicorn would close it, with its request on the way
                conn.sock.setblocking(False)
                conn.timeout = time.monotonic() + STOP_KEEPALIVE_LINGER
                self.pending_conns.append(conn)
                self._poll(conn, self.on_pending_socket_readable)
            else:
                super().finish_request(conn, fs)
            return
        try:
            conn.sock.shutdown(socket.SHUT_WR)
        except OSError:  # it is closed, lost, or handed over
            self._close(conn)
            return
        # Closed now, with something unread, it would be reset, and the client might not get the whole answer.
        conn.timeout = time.monotonic() + _LINGER
        self._lingering[conn] = None
        self._poll(conn, self._on_lingering_readable)

    def _on_lingering_readable(self, conn: Any, _client: Any) -> None:
        """Close a connection that the client has closed, too, or on which it sends more and more."""
        try:
            received = len(conn.sock.raw.recv(_MAX_DRAINED_BYTES))
        except BlockingIOError:
            return
        except OSError:
            received = 0
        conn.drained += received
        if not received or conn.drained >= _MAX_DRAINED_BYTES:
            del self._lingering[conn]
            self._stop_polling(conn)

    def murder_pending(self) -> None:
        """Close the connections whose time is over; and an idle one if there are too many.

        The main thread calls it when it has nothing else in hand.
        """
        super().murder_pending()
        now = time.monotonic()
        for conn in list(self._lingering):
            if conn.timeout > now:
                break
            del self._lingering[conn]
            self._stop_polling(conn)
        while self._lacks_descriptors or self.nr_conns >= self.worker_connections:
            self._lacks_descriptors = False
            if not self._close_idle():
                break

    def _close_idle(self) -> bool:
        """Close the connection whose client has most likely the least use for it; return whether there is one."""
        if self._lingering:
            conn = next(iter(self._lingering))
            del self._lingering[conn]
        elif self.pending_conns or self.keepalived_conns:
            conn = (self.pending_conns or self.keepalived_conns).popleft()
        else:
            return False
        self._stop_polling(conn)
        return True

    def _cap_keepalive(self, deadline: float) -> None:
        """Close all idle connections by `deadline`, also those that have sent nothing yet."""
        super()._cap_keepalive(deadline)
        for conn in (*self.pending_conns, *self._lingering):
            conn.timeout = min(conn.timeout, deadline)

    def _poll(self, conn: Any, readable: Callable[[Any, Any], None]) -> None:
        self.poller.register(conn.sock, selectors.EVENT_READ, partial(readable, conn))

    def _stop_polling(self, conn: Any) -> None:
        self.poller.unregister(conn.sock)
        self._close(conn)

    def _close(self, conn: Any) -> None:
        self.nr_conns -= 1
        conn.close()

    def is_parent_alive(self) -> bool:
        """Return whether the parent runs; if not, close the listening sockets, so that its successor can bind.

        Gunicorn keeps them until the last connection has ended: for up to 30 s nobody answers new ones, and the
        successor gives up after five attempts.
        """
        if super().is_parent_alive():
            return True
        self.alive = False
        self.set_accept_enabled(False)
        return False

    def handle_request(self, req: Any, conn: Any) -> Any:
        """Handle one request; while the API is about to stop, its connection is closed after the answer."""
        if stopping.begun:
            req.force_close()
        try:
            with self._slots.reading(conn.sock) if _is_read(req) else nullcontext():
                return super().handle_request(req, conn)
        except SocketHandedOver as handed:
            # Gunicorn shuts down and closes the socket in `conn`, and a shutdown would also affect a copy of it.
            taken, conn.sock = conn.sock.raw, ClientSocket(socket.socket(), self._slots)
            handed.take(taken)
            return False
