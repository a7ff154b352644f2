"""Start streams: find each one's position in the log, and hand its connection to the broadcaster."""

import resource
import socket
from collections.abc import Callable

from app.api.listen.broadcaster import Broadcaster
from app.api.listen.query import RESUME, StreamQuery
from app.api.s3.errors import S3Error
from app.outbox.engine.database import Database
from app.outbox.log.reading import log_end, position_of
from app.per_process import PerProcess

MAX_STREAMS = 10_000  # per process
MAX_TLS_STREAMS = 500  # per process: each has a thread and three descriptors
_SHARE = 8  # a limited token has one in so many, or it could keep all others from listening
_TLS_FILES = 3
_OTHER_FILES = 256  # descriptors that the process needs for requests, the database and itself
_FILES = 65_536


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
