"""All streams of one process: an event loop that holds their connections, and a thread that follows the log for them.

The thread asks for the log's end each `INTERVAL` while there are streams, one small query however many they are, and
reads what is new once for all. A stream that is behind, because it asked to resume or reads too slowly, is served from
the log, some events at a time as it takes them. So what waits in memory for one reader is bounded, and a slow one loses
nothing until it is `MOST_BEHIND`; then it is told, and goes on with what is new.
"""

import asyncio
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

import sqlalchemy as sa

from app.api.listen.query import StreamQuery
from app.api.listen.stream import LEGACY_PING, MOST_WAITING, Stream
from app.api.listen.tls_bridge import decrypt
from app.api.listen.wire_format import Line, event_line
from app.outbox.engine.database import Database, describe_error
from app.outbox.log.log_reader import LogEnd, events_between, log_end
from app.rules.matching import Matcher, compile_rules

log = logging.getLogger("bucketwire.listen")
_T = TypeVar("_T")

INTERVAL = 0.2  # seconds between two looks at the log's end
MOST_BEHIND = 10_000  # seqs
_SHARED_READ = 1000  # seqs that are read at once for all
_CATCH_UP_READ = 100  # seqs that are read at once for one that is behind
_CATCH_UP_STREAMS = 32  # streams that are served so before the others have their turn again
_RETRY_DELAY = 1.0  # seconds before a database that is away is asked again
_UNKNOWN = -1
_SEND_BUFFER = 64 * 1024  # bytes that the kernel may hold for one reader; it takes twice that, and else up to megabytes


class Broadcaster:
    """The streams of one process. Its threads end with the process."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._streams: dict[Stream, None] = {}
        self._matcher: Matcher[Stream] | None = None
        self._some = threading.Event()
        self._ticking = False
        self._position = _UNKNOWN
        self._turn = 0
        self._loop = asyncio.new_event_loop()
        for name, run in (("listen-loop", self._loop.run_forever), ("listen-log", self._follow)):
            threading.Thread(target=run, name=name, daemon=True).start()

    def __len__(self) -> int:
        return len(self._streams)

    def stream(self, query: StreamQuery, place: int, *, chunked: bool, number: str) -> Stream:
        """A stream of what comes after `place`, to be given its connection by `admit`."""
        return Stream(
            query, place, number=number, chunked=chunked, entered=self._stream_opened, gone=self._stream_closed
        )

    def admit(self, connection: socket.socket, stream: Stream) -> None:
        """Take the connection over. From any thread."""
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if isinstance(connection, ssl.SSLSocket):
            connection = decrypt(connection, _SEND_BUFFER)
            connection.setblocking(False)
        asyncio.run_coroutine_threadsafe(self._loop.connect_accepted_socket(lambda: stream, connection), self._loop)

    # In the loop's thread

    def _stream_opened(self, stream: Stream) -> None:
        with self._lock:
            self._streams[stream] = None
            self._matcher = None
        self._some.set()
        if not self._ticking:
            self._ticking = True
            self._loop.call_later(LEGACY_PING, self._tick)

    def _stream_closed(self, stream: Stream) -> None:
        with self._lock:
            self._streams.pop(stream, None)
            self._matcher = None

    def _tick(self) -> None:
        now = self._loop.time()
        for stream in self._streams:
            stream.keep_alive(now)
        self._ticking = bool(self._streams)
        if self._ticking:
            self._loop.call_at(now + LEGACY_PING, self._tick)

    # In the thread that follows the log

    def _follow(self) -> None:
        away = False
        while True:
            self._some.wait()
            try:
                busy = self._poll_log()
            except sa.exc.SQLAlchemyError as error:
                if not away:
                    log.warning("streams wait: the outbox database is away: %s", describe_error(error))
                away, busy = True, False
                time.sleep(_RETRY_DELAY)
            except Exception:
                log.exception("streams wait: unexpected error")
                busy = False
                time.sleep(_RETRY_DELAY)
            else:
                away = False
            if not busy:
                time.sleep(INTERVAL)

    def _poll_log(self) -> bool:
        """Look once; says whether there is more to do at once."""
        with self._lock:
            streams, matcher = list(self._streams), self._matcher
            if not streams:
                self._some.clear()
                self._position = _UNKNOWN
                return False
            if matcher is None:
                matcher = self._matcher = compile_rules((stream.query.rule, stream) for stream in streams)
        head = log_end(self._database)
        if not 0 <= self._position <= head.seq:  # greater: the log is another one than before
            self._position = head.seq
            for stream in streams:
                stream.place = min(stream.place, head.seq)
        busy = self._serve_lagging([stream for stream in streams if not stream.live], head)
        if self._position < head.seq:
            last = min(self._position + _SHARED_READ, head.seq)
            self._broadcast(matcher, head.partitions, self._position, last)
            self._position = last
            busy = busy or last < head.seq
        return busy

    def _broadcast(self, matcher: Matcher[Stream], partitions: int, after: int, last: int) -> None:
        lines: dict[Stream, list[Line]] = {}
        for row in events_between(self._database, partitions, after, last):
            wanting = [
                stream
                for stream in matcher.targets(row.bucket, row.name, row.key)
                if stream.live and stream.place < row.seq
            ]
            if wanting:
                line = event_line(row.seq, row.id, row.key, row.record)
                for stream in wanting:
                    lines.setdefault(stream, []).append(line)
        sent = self._in_loop(lambda: [stream.send(some, bounded=True) for stream, some in lines.items()])
        for (stream, some), count in zip(lines.items(), sent, strict=True):
            if count < len(some):
                stream.live, stream.place = False, some[count].seq - 1

    def _serve_lagging(self, behind: Sequence[Stream], head: LogEnd) -> bool:
        busy, served = False, 0
        self._turn += _CATCH_UP_STREAMS
        for stream in _rotate(behind, self._turn):
            if stream.place >= self._position:
                stream.live, stream.resumed = True, False
            elif stream.waiting <= MOST_WAITING // 4 and served < _CATCH_UP_STREAMS:
                self._catch_up(stream, head)
                served += 1
                busy = True
        return busy

    def _catch_up(self, stream: Stream, head: LogEnd) -> None:
        missed = self._position - stream.place
        if missed > MOST_BEHIND and not stream.resumed:
            stream.place = self._position
            self._in_loop(partial(stream.tell, missed))
            return
        last = min(stream.place + _CATCH_UP_READ, self._position)
        rows = events_between(self._database, head.partitions, stream.place, last)
        lines = [
            event_line(row.seq, row.id, row.key, row.record)
            for row in rows
            if stream.alone.targets(row.bucket, row.name, row.key)
        ]
        self._in_loop(lambda: stream.send(lines, bounded=False))
        stream.place = last

    def _in_loop(self, act: Callable[[], _T]) -> _T:
        """Act in the loop's thread and wait: so no more is read than the loop has taken."""
        done: Future[_T] = Future()

        def run() -> None:
            try:
                done.set_result(act())
            except Exception as error:  # noqa: BLE001 - raised where the result is wanted
                done.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return done.result()


def _rotate(streams: Sequence[Stream], turn: int) -> Iterable[Stream]:
    """Those that were not reached the last time come first."""
    start = turn % len(streams) if streams else 0
    return [*streams[start:], *streams[:start]]
