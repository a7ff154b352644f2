"""Share commits between concurrent requests (group commit): requests that wait for a transaction share the next."""

import os
import threading
from collections.abc import Sequence
from queue import Empty, SimpleQueue

from app.events.model import Event
from app.outbox.engine.database import Database
from app.outbox.log.batch import QueueFull, Receipt
from app.outbox.log.recorder import Answer, Recorder

_GROUP_BYTES = 1 << 24  # of the records in one transaction


class _Waiting:
    """A request that waits for its answer. (With a `Future`, handing it over takes twice as long.)"""

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = events
        self.size = sum([len(event.record) for event in events])
        self._taken, self._unanswered = threading.Lock(), threading.Lock()
        self._unanswered.acquire()
        self._answer: Answer = Receipt()

    def take(self) -> bool:
        """Take the request, for a transaction or to give it up. Returns False if it was taken before."""
        return self._taken.acquire(blocking=False)

    def answer(self, answer: Answer) -> None:
        self._answer = answer
        self._unanswered.release()

    def result(self, timeout: float) -> Receipt | QueueFull:
        if not self._unanswered.acquire(timeout=timeout):
            self.take()  # if no transaction has taken it yet, none will
            raise TimeoutError
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


class GroupCommit:
    """Record all requests of a process. Create one object for each process; its thread starts at the first use.

    A transaction takes requests until it has `most_events` events or 16 MiB of records; a request is never split. With
    `most_events=1`, every request has its own commit. A request that the database refuses fails alone. A thread of its
    own commits, so that a request gets its answer in time even if the database hangs.
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
        return waiting.result(timeout)

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
                waiting.answer(answer)

    def _group(self, queue: SimpleQueue[_Waiting]) -> list[_Waiting]:
        group: list[_Waiting] = []
        count = size = 0
        while not group or (count < self._most_events and size < _GROUP_BYTES):
            try:
                waiting = queue.get(block=not group)
            except Empty:
                break
            if waiting.take():
                group.append(waiting)
                count += len(waiting.events)
                size += waiting.size
        return group
