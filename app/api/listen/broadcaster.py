"""Start and serve all streams of a process: an event loop has their connections, and a thread reads the log for them.

While there are streams, the thread queries the end of the log every `INTERVAL` (one small query for all of them) and
reads new events once for all. A stream that lags, because it resumes or reads too slowly, is served from the log, some
events at a time. So the memory for a slow reader is bounded, and it loses nothing until it lags by `MAX_SEQS_BEHIND`;
then it gets a marker of the gap and continues with new events.

After a failover to an older state of the outbox, new events have positions that were read before, as events that are
lost. So the thread remembers the ids of those that it read last: reading continues after the last one that is left.
"""

import asyncio
import logging
import resource
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

import sqlalchemy as sa

from app.api.listen.stream import (
    LEGACY_PING,
    MAX_BUFFERED_BYTES,
    RESUME,
    LargeEvents,
    Line,
    Stream,
    StreamQuery,
    decrypt,
    event_line,
)
from app.api.s3.errors import S3Error
from app.outbox.engine.database import Database
from app.outbox.engine.db_errors import outbox_state
from app.outbox.log.reading import events_between, first_seq, ids_between, last_kept, log_end, log_state, position_of
from app.outbox.log_head import LogHead, LogState
from app.per_process import PerProcess
from app.rules.matching import Matcher, compile_rules

MAX_STREAMS = 10_000  # per process
MAX_TLS_STREAMS = 500  # per process: each has a thread and three descriptors
_SHARE = 8  # a limited token has one in so many, or it could keep all others from listening
_TLS_FILES = 3
_OTHER_FILES = 256  # descriptors that the process needs for requests, the database and itself
_FILES = 65_536


log = logging.getLogger("bucketwire.listen")
_T = TypeVar("_T")

INTERVAL = 0.2  # seconds between two queries of the log's end
MAX_SEQS_BEHIND = 10_000  # seqs
_SHARED_READ = 1000  # seqs in one read for all streams
_CATCH_UP_READ = 100  # seqs in one read for a lagging stream
_CATCH_UP_STREAMS = 32  # lagging streams served in one round
_RETRY_DELAY = 1.0  # seconds before an unavailable database is queried again
_CHECK_INTERVAL = 2.0  # seconds between two questions whether a listener may still listen
_UNKNOWN = -1
_SEND_BUFFER = (
    64 * 1024
)  # bytes that the kernel may buffer for a reader; it uses twice that, by default up to megabytes


class Broadcaster:
    """The streams of one process. Its threads end with the process."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._streams: dict[Stream, None] = {}
        self._matcher: Matcher[Stream] | None = None
        self._has_streams = threading.Event()
        self._ticking = False
        self._position = _UNKNOWN
        self._state: LogState | None = None  # of the log, as of the last look
        self._read: deque[tuple[int, str]] = deque(maxlen=MAX_SEQS_BEHIND)  # seqs and ids of the last events
        self._read_from = 0  # up to which seq nothing is known of them
        self._turn = 0
        self._check_at = 0.0
        self._large = LargeEvents()
        self._loop = asyncio.new_event_loop()
        for name, run in (("listen-loop", self._loop.run_forever), ("listen-log", self._follow)):
            threading.Thread(target=run, name=name, daemon=True).start()

    def __len__(self) -> int:
        return len(self._streams)

    def held_by(self, holder: str) -> int:
        """Return how many streams a holder has."""
        with self._lock:
            return sum([stream.query.holder == holder for stream in self._streams])

    def stream(self, query: StreamQuery, position: int, *, chunked: bool, number: str) -> Stream:
        """Create a stream of the events after seq `position`; `admit` gives it its connection."""
        return Stream(
            query,
            position,
            number=number,
            chunked=chunked,
            large=self._large,
            opened=self._stream_opened,
            closed=self._stream_closed,
        )

    def admit(self, connection: socket.socket, stream: Stream) -> None:
        """Take over the connection. May be called from any thread."""
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if isinstance(connection, ssl.SSLSocket):
            connection = decrypt(connection, _SEND_BUFFER)
            connection.setblocking(False)
        asyncio.run_coroutine_threadsafe(self._loop.connect_accepted_socket(lambda: stream, connection), self._loop)

    # In the event loop's thread

    def _stream_opened(self, stream: Stream) -> None:
        with self._lock:
            self._streams[stream] = None
            self._matcher = None
        self._has_streams.set()
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
        self._large.check(now)
        self._ticking = bool(self._streams)
        if self._ticking:
            self._loop.call_at(now + LEGACY_PING, self._tick)

    # In the thread that reads the log

    def _follow(self) -> None:
        while True:
            self._has_streams.wait()
            try:
                busy = self._poll_log()
            except sa.exc.SQLAlchemyError as error:
                outbox_state.failed(error)
                busy = False
                time.sleep(_RETRY_DELAY)
            except Exception:
                log.exception("streams wait: unexpected error")
                busy = False
                time.sleep(_RETRY_DELAY)
            if not busy:
                time.sleep(INTERVAL)

    def _poll_log(self) -> bool:
        """Poll the log once; return whether there is more to read immediately."""
        with self._lock:
            streams, matcher = list(self._streams), self._matcher
            if not streams:
                self._has_streams.clear()
                self._position = _UNKNOWN
                return False
            if matcher is None:
                matcher = self._matcher = compile_rules((stream.query.rule, stream) for stream in streams)
        head, state = log_state(self._database)
        self._end_forbidden(streams)
        self._find_position(streams, head, state)
        busy = self._serve_lagging([stream for stream in streams if not stream.live], head)
        if self._position < head.last_seq:
            last = min(self._position + _SHARED_READ, head.last_seq)
            self._position = self._broadcast(streams, matcher, head.partitions, self._position, last)
            busy = busy or self._position < head.last_seq
        return busy

    def _find_position(self, streams: Sequence[Stream], head: LogHead, state: LogState) -> None:
        """Begin at the log's end, or go back to the last event that is left if the log is an older state of itself."""
        before, self._state = self._state, state
        if self._position == _UNKNOWN:
            self._position, self._read_from = head.last_seq, max(0, head.last_seq - _SHARED_READ)
            self._read.clear()
            self._read.extend(ids_between(self._database, head.partitions, self._read_from, head.last_seq))
        elif before is None or before[1:] != state[1:] or self._position > head.last_seq:
            first = first_seq(self._database, head.partitions)  # what comes before was purged
            known = [(seq, event_id) for seq, event_id in self._read if seq >= first]
            kept = min(last_kept(self._database, known, self._read_from), self._position, head.last_seq)
            while self._read and self._read[-1][0] > kept:
                self._read.pop()
            self._position = kept
            for stream in streams:
                stream.position = min(stream.position, kept)

    def _end_forbidden(self, streams: Sequence[Stream]) -> None:
        """End the streams of listeners that may not listen any more, such as those whose token was revoked."""
        now = time.monotonic()
        if now < self._check_at:
            return
        self._check_at = now + _CHECK_INTERVAL
        asked: dict[Callable[[], bool], bool] = {}  # many streams may have the same token
        for stream in streams:
            is_allowed = stream.query.is_allowed
            if is_allowed is not None and is_allowed not in asked:
                asked[is_allowed] = is_allowed()
            if is_allowed is not None and not asked[is_allowed]:
                self._run_in_loop(stream.end)

    def _broadcast(
        self, streams: Sequence[Stream], matcher: Matcher[Stream], partitions: int, after: int, last: int
    ) -> int:
        """Send the events of a part of the log to all streams; return the seq up to which it was read."""
        lines: dict[Stream, list[Line]] = {}
        rows, last = events_between(self._database, partitions, after, last)
        exceeds = len(self._read) + len(rows) > MAX_SEQS_BEHIND
        self._read.extend((row.seq, row.id) for row in rows)
        if exceeds:
            self._read_from = self._read[0][0] - 1
        for row in rows:
            receivers = [
                stream
                for stream in matcher.targets(row.bucket, row.name, row.key)
                if stream.live and stream.position < row.seq and stream.wants(row)
            ]
            if receivers:
                line = event_line(row.seq, row.id, row.key, row.record)
                for stream in receivers:
                    lines.setdefault(stream, []).append(line)

        def send() -> None:
            for stream in streams:
                batch = lines.get(stream, [])
                count = stream.send(batch)
                if count < len(batch):
                    stream.live, stream.position = False, batch[count].seq - 1
                elif stream.live and rows and stream.position < rows[-1].seq:
                    stream.passed(rows[-1].id)

        self._run_in_loop(send)  # this thread waits, so `live` and `position` are still its own
        return last

    def _serve_lagging(self, lagging: Sequence[Stream], head: LogHead) -> bool:
        busy, served = False, 0
        self._turn += _CATCH_UP_STREAMS
        for stream in _rotate(lagging, self._turn):
            if stream.position >= self._position:
                stream.live, stream.resumed = True, False
            elif stream.needs is not None and not self._large.has_room(*stream.needs):
                continue
            elif stream.waiting <= MAX_BUFFERED_BYTES // 4 and served < _CATCH_UP_STREAMS:
                self._catch_up(stream, head)
                served += 1
                busy = True
        return busy

    def _catch_up(self, stream: Stream, head: LogHead) -> None:
        missed = self._position - stream.position
        if missed > MAX_SEQS_BEHIND and not stream.resumed:
            stream.position = self._position
            self._run_in_loop(partial(stream.send_gap_marker, missed))
            return
        last = min(stream.position + _CATCH_UP_READ, self._position)
        rows, last = events_between(self._database, head.partitions, stream.position, last)
        lines = [
            event_line(row.seq, row.id, row.key, row.record)
            for row in rows
            if stream.matcher.targets(row.bucket, row.name, row.key) and stream.wants(row)
        ]

        def send() -> None:
            sent = stream.send(lines)
            if sent < len(lines):
                stream.position = lines[sent].seq - 1
                return
            stream.position = last
            if rows:
                stream.passed(rows[-1].id)

        self._run_in_loop(send)  # as above

    def _run_in_loop(self, function: Callable[[], _T]) -> _T:
        """Run a function in the event loop's thread and wait, so that reading is never ahead of the loop."""
        done: Future[_T] = Future()

        def run() -> None:
            try:
                done.set_result(function())
            except Exception as error:  # noqa: BLE001 - raised in the waiting thread
                done.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return done.result()


def _rotate(streams: Sequence[Stream], turn: int) -> Iterable[Stream]:
    """Rotate the streams, so that those that were not served the last time come first."""
    start = turn % len(streams) if streams else 0
    return [*streams[start:], *streams[:start]]


class SocketHandedOver(Exception):
    """Raised instead of returning a response: `take` gets the socket and answers on it, without the server."""

    def __init__(self, take: Callable[[socket.socket], None]) -> None:
        super().__init__("the connection was handed over")
        self.take = take


class Streams:
    """The streams of this process; its threads start with the first one."""

    def __init__(self, database: Database, *, tls: bool = False) -> None:
        self._database = database
        self._tls = tls
        self._broadcaster = PerProcess(self._begin)
        self._most = MAX_STREAMS

    def begin(self, query: StreamQuery, *, chunked: bool, number: str) -> SocketHandedOver:
        """Return the exception to raise so that the connection becomes the stream.

        The stream has the events from now on, or those after the query's `resume_after`. Raises `S3Error` if the log
        does not contain that event, or if there are too many streams, or too many of the query's holder.
        """
        position = self._position_after(query) if query.resume_after else log_end(self._database).last_seq
        broadcaster = self._broadcaster.get()
        if len(broadcaster) >= self._most:
            raise S3Error("SlowDown")
        if query.holder and broadcaster.held_by(query.holder) >= self._most // _SHARE:
            raise S3Error("SlowDown")
        stream = broadcaster.stream(query, position, chunked=chunked, number=number)
        return SocketHandedOver(lambda connection: broadcaster.admit(connection, stream))

    def _position_after(self, query: StreamQuery) -> int:
        position = position_of(self._database, query.resume_after, query.resume_bucket)
        if position is None:
            raise S3Error("InvalidArgument", f"{RESUME}: the event log does not contain this event (any more).")
        return position

    def _begin(self) -> Broadcaster:
        files = _raise_file_limit() - _OTHER_FILES
        self._most = min(MAX_TLS_STREAMS, files // _TLS_FILES) if self._tls else min(MAX_STREAMS, files)
        return Broadcaster(self._database)


def _raise_file_limit() -> int:
    """Raise this process's limit of open files as far as allowed, and return it.

    A process that reaches the limit can accept no more requests; the usual soft limit of 1,024 is meant to be raised.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        return limit
    return _FILES if soft == resource.RLIM_INFINITY else soft
