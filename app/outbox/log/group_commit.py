"""Share commits between concurrent requests (group commit): requests that wait for a transaction share the next."""

import threading
import time
from collections.abc import Sequence
from queue import Empty, SimpleQueue

import sqlalchemy as sa

from app.events.model import Event
from app.outbox.engine.database import VALUE_ERRORS, Database
from app.outbox.log.append import RoutingChanged
from app.outbox.log.batch import QueueFull, Receipt
from app.outbox.log.recorder import Answer, Recorder
from app.outbox.log.routing import Matches, Targets
from app.outbox.policies import APPEND
from app.per_process import PerProcess


class _Waiting:
    """A request that waits for its answer. (With a `Future`, handing it over takes twice as long.)"""

    def __init__(self, events: Sequence[Event], matches: Matches) -> None:
        self.events = events
        self.matches = matches
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


class _Committing:
    """What the threads of one process share."""

    def __init__(self, database: Database) -> None:
        self.queue: SimpleQueue[_Waiting] = SimpleQueue()
        self.lock = threading.Lock()  # held by the thread that uses the recorder
        self.recorder = Recorder(database)
        self.thread_waits = False  # for the lock


class GroupCommit:
    """Record all requests of a process. Create one object for each process; its thread starts at the first use.

    A request that comes while nothing is committed commits itself: no other thread has to wake up for it. Those that
    come meanwhile wait for a thread, which commits them together. So does one that the database did not answer in time,
    or not well.

    Each request's events are compared with the rules in its own thread, before they wait: no expression, and no number
    of them, makes others wait. If the rules change meanwhile, they are compared again.

    A transaction takes requests until it has `max_events` events or 16 MiB of records; a request is never split. With
    `max_events=1`, every request has its own commit. A request that the database refuses fails alone.
    """

    def __init__(self, database: Database, *, max_events: int = APPEND.max_group_events) -> None:
        self._database = database
        self._max_events = max_events
        self._committing = PerProcess(self._start)

    def append(self, events: Sequence[Event], timeout: float = 30.0) -> Receipt | QueueFull:
        """Record one request's events, and return after the commit.

        Raises `DatabaseUnavailable` if the database is unavailable, and nothing was recorded as far as is known,
        `Unstorable` if it refuses these events but accepts others, and `TimeoutError` after `timeout` seconds, when it
        is unknown whether the events were or will be recorded. Sending them again is safe in any case. Raises
        `MatchingTooSlow` if comparing several events with the rules takes half of `timeout`, and `MatchingBusy` if it
        costs much while another request does; nothing was recorded then.
        """
        deadline = time.monotonic() + timeout
        committing = self._committing.get()
        while True:
            matches = committing.recorder.log.routing.match(events, (deadline - time.monotonic()) / 2)
            try:
                seconds = deadline - time.monotonic() - APPEND.spare_seconds
                answer = self._commit_alone(committing, events, matches, seconds)
                if answer is not None:
                    return answer
                waiting = _Waiting(events, matches)
                committing.queue.put(waiting)
                return waiting.result(max(0.0, deadline - time.monotonic()))
            except RoutingChanged as error:
                if time.monotonic() > deadline:
                    raise TimeoutError from error

    def _commit_alone(
        self, committing: _Committing, events: Sequence[Event], matches: Matches, seconds: float
    ) -> Receipt | QueueFull | None:
        """Record the events in this thread, or return None: the other thread has to record them.

        It has to if requests are being committed or wait, if no connection is open, and if a statement fails or takes
        `seconds`.
        """
        if seconds <= 0 or committing.thread_waits or not committing.queue.empty() or not self._database.is_connected:
            return None
        if not committing.lock.acquire(blocking=False):
            return None
        try:
            with self._database.answering_within(seconds):
                return committing.recorder.log.append([events], matches=matches)[0]
        except (sa.exc.SQLAlchemyError, *VALUE_ERRORS):
            return None  # the recorder finds out whose fault it is; if the events are recorded, it records nothing
        finally:
            committing.lock.release()

    def _start(self) -> _Committing:
        committing = _Committing(self._database)
        threading.Thread(target=self._run, args=(committing,), name="group-commit", daemon=True).start()
        return committing

    def _run(self, committing: _Committing) -> None:
        while True:
            first = committing.queue.get()
            committing.thread_waits = True
            with committing.lock:
                committing.thread_waits = False
                with self._database.answering_within(APPEND.statement_seconds):
                    self._commit_group(committing, self._take_group(first, committing.queue))
            del first  # with its events, which may be many megabytes

    def _commit_group(self, committing: _Committing, group: Sequence[_Waiting]) -> None:
        """Record the requests of a group that were matched by the present rules; the others have to match again."""
        routing = committing.recorder.log.routing
        targets: dict[str, Targets] = {}
        current: list[_Waiting] = []
        for waiting in group:
            if waiting.matches.routing is routing:
                current.append(waiting)
                targets.update(waiting.matches.targets)
            else:
                waiting.answer(RoutingChanged())
        answers = committing.recorder.record([waiting.events for waiting in current], matches=Matches(routing, targets))
        for waiting, answer in zip(current, answers, strict=True):
            waiting.answer(answer)

    def _take_group(self, first: _Waiting, queue: SimpleQueue[_Waiting]) -> list[_Waiting]:
        """Take this request and those that wait behind it, as many as one transaction takes."""
        group: list[_Waiting] = []
        events = size = 0
        waiting = first
        while True:
            if waiting.take():
                group.append(waiting)
                events += len(waiting.events)
                size += waiting.size
            if events >= self._max_events or size >= APPEND.max_group_bytes:
                return group
            try:
                waiting = queue.get_nowait()
            except Empty:
                return group
