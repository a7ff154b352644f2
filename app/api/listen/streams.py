"""Begin streams: where each starts in the log, and who takes its connection."""

import os
import resource
import threading

from app.api.listen.broadcaster import Broadcaster
from app.api.listen.gunicorn_worker import SocketHandedOver
from app.api.listen.query import RESUME, StreamQuery
from app.api.s3.errors import S3Error
from app.outbox.engine.database import Database
from app.outbox.log.log_reader import log_end, position_of

MOST_STREAMS = 10_000  # of one process
_OTHER_FILES = 256  # descriptors that the process needs for requests, the database and itself
_FILES = 65_536


class Streams:
    """The streams of this process; its threads start with the first one."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._pid = 0
        self._hall: Broadcaster | None = None
        self._most = MOST_STREAMS

    def begin(self, query: StreamQuery, *, chunked: bool, number: str) -> SocketHandedOver:
        """What to raise so that the connection becomes the stream: of events from now on, or after the one it names.

        Raises `S3Error` where the log does not hold that event or there are too many streams.
        """
        place = self._place(query.resume_after) if query.resume_after else log_end(self._database).seq
        broadcaster = self._here()
        if len(broadcaster) >= self._most:
            raise S3Error("SlowDown")
        stream = broadcaster.stream(query, place, chunked=chunked, number=number)
        return SocketHandedOver(lambda connection: broadcaster.admit(connection, stream))

    def _place(self, event_id: str) -> int:
        place = position_of(self._database, event_id)
        if place is None:
            raise S3Error("InvalidArgument", f"{RESUME}: the log does not hold this event, or not any more.")
        return place

    def _here(self) -> Broadcaster:
        with self._lock:
            if self._hall is None or self._pid != os.getpid():
                self._hall, self._pid = Broadcaster(self._database), os.getpid()
                self._most = min(MOST_STREAMS, _files() - _OTHER_FILES)
            return self._hall


def _files() -> int:
    """How many files this process may have open, after asking for as many as it is allowed.

    A process that runs out of them can take no request any more; the usual 1,024 are meant to be raised by whoever can.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return _FILES if soft == resource.RLIM_INFINITY else soft
