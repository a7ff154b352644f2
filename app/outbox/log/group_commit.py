"""Share commits between concurrent requests (group commit): requests that wait for a transaction share the next."""

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue

from app.events.model import Event
from app.outbox.engine.database import Database
from app.outbox.log.append import QueueFull, Receipt
from app.outbox.log.recorder import Answer, Recorder

_GROUP_BYTES = 1 << 24  # of the records in one transaction


class _Waiting(Future[Receipt | QueueFull]):
    def __init__(self, events: Sequence[Event]) -> None:
        super().__init__()
        self.events = events
        self.size = sum(len(event.record) for event in events)


class GroupCommit:
    """Record all requests of a process. Create one object for each process; its thread starts at the first use.

    A transaction takes requests until it has `most_events` events or 16 MiB of records; a request is never split. With
    `most_events=1`, every request has its own commit. A request that the database refuses fails alone.
    """

    def __init__(self, database: Database, *, most_events: int = 10_000) -> None:
        self._database = database
        self._most_events = most_events
        self._lock = threading.Lock()
        self._pid = 0
        self._queue: SimpleQueue[_Waiting] = SimpleQueue()

    def append(self, events: Sequence[Event], timeout: float = 30.0) -> Receipt | QueueFull:
        """Record one request's events, and return after the commit.

        Raises `DatabaseUnavailable` if nothing was recorded because the database is unavailable, `Unstorable` if it
        refuses these events but accepts others, and `TimeoutError` after `timeout` seconds. After a `TimeoutError` it
        is unknown whether the events were or will be recorded; sending them again is safe.
        """
        waiting = _Waiting(events)
        self._started().put(waiting)
        try:
            return waiting.result(timeout)
        except TimeoutError:
            waiting.cancel()  # if no transaction has taken it yet, none will
            raise

    def _started(self) -> SimpleQueue[_Waiting]:
        if self._pid != os.getpid():
            with self._lock:
                if self._pid != os.getpid():
                    self._queue = SimpleQueue()
                    threading.Thread(target=self._run, args=(self._queue,), name="group-commit", daemon=True).start()
                    self._pid = os.getpid()
        return self._queue

    def _run(self, queue: SimpleQueue[_Waiting]) -> None:
        recorder = Recorder(self._database)
        while True:
            group = self._group(queue)
            for waiting, answer in zip(group, recorder.record([each.events for each in group]), strict=True):
                _settle(waiting, answer)

    def _group(self, queue: SimpleQueue[_Waiting]) -> list[_Waiting]:
        group: list[_Waiting] = []
        count = size = 0
        while not group or (count < self._most_events and size < _GROUP_BYTES):
            try:
                waiting = queue.get(block=not group)
            except Empty:
                break
            if waiting.set_running_or_notify_cancel():
                group.append(waiting)
                count += len(waiting.events)
                size += waiting.size
        return group


def _settle(waiting: _Waiting, answer: Answer) -> None:
    if isinstance(answer, Exception):
        waiting.set_exception(answer)
    else:
        waiting.set_result(answer)
