"""Share commits between concurrent requests: whoever waits while one transaction runs goes into the next."""

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue

import sqlalchemy as sa

from app.events.model import Event
from app.outbox.append import Log, QueueFull, Receipt
from app.outbox.database import Database, DatabaseUnavailable

_MOST_EVENTS = 10_000  # of one transaction; a request is never divided


class _Waiting(Future[Receipt | QueueFull]):
    def __init__(self, events: Sequence[Event]) -> None:
        super().__init__()
        self.events = events


class GroupCommit:
    """The way of every request into the log. One object for each process; the thread starts at the first use."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._pid = 0
        self._queue: SimpleQueue[_Waiting] = SimpleQueue()

    def append(self, events: Sequence[Event], timeout: float = 30.0) -> Receipt | QueueFull:
        """Record one request's events; returns after the commit.

        Raises `DatabaseUnavailable` when nothing was recorded because the database is away, and `TimeoutError`
        after `timeout` seconds, when it is not known whether they were: sending them again is safe.
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
        log = Log(self._database)
        while True:
            group = _group(queue)
            try:
                _answer(group, log.append([waiting.events for waiting in group]))
            except DatabaseUnavailable as error:
                _fail(group, error)
            except sa.exc.SQLAlchemyError:
                # One request holds a value that the database refuses: the others must not suffer for it.
                for waiting in group:
                    _alone(log, waiting)
            except BaseException as error:
                _fail(group, error)
                raise


def _group(queue: SimpleQueue[_Waiting]) -> list[_Waiting]:
    group = [queue.get()]
    count = len(group[0].events)
    while count < _MOST_EVENTS:
        try:
            group.append(queue.get_nowait())
        except Empty:
            break
        count += len(group[-1].events)
    return group


def _alone(log: Log, waiting: _Waiting) -> None:
    try:
        _answer([waiting], log.append([waiting.events]))
    except sa.exc.SQLAlchemyError as error:
        _fail([waiting], error)


def _answer(group: Sequence[_Waiting], answers: Sequence[Receipt | QueueFull]) -> None:
    for waiting, answer in zip(group, answers, strict=True):
        waiting.set_result(answer)


def _fail(group: Sequence[_Waiting], error: BaseException) -> None:
    for waiting in group:
        waiting.set_exception(error)
