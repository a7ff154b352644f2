"""Record requests: those that wait for a transaction share the next (group commit), and a refused one fails alone."""

import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from uuid import uuid4

import sqlalchemy as sa

from app.config.arn import TargetId
from app.events.model import Event
from app.outbox import log_head, tables
from app.outbox.engine.database import VALUE_ERRORS, Database, describe_error, now_ms
from app.outbox.engine.db_errors import Unstorable, may_be_a_value
from app.outbox.log.append import Guard, Log, QueueFull, Receipt, RoutingChanged
from app.outbox.log.routing import Matches, Targets
from app.outbox.policies import APPEND
from app.per_process import PerProcess

Answer = Receipt | QueueFull | Exception


class Recorder:
    """Append to the log. Create one object for each process, and use it from one thread at a time."""

    def __init__(
        self,
        database: Database,
        *,
        only_target: TargetId | None = None,
        guard: Guard | None = None,
        action: str = "",
    ) -> None:
        """`only_target`, `guard` and `action` are those of `Log.append`, for every request."""
        self.log = Log(database)
        self._database = database
        self._append = partial(self.log.append, only_target=only_target, guard=guard, action=action)

    def record(
        self, requests: Sequence[Sequence[Event]], *, matches: Matches | None = None, promised: bool = False
    ) -> Iterator[Answer]:
        """Record requests and yield an answer for each, in order; the options are those of `Log.append`.

        An exception as an answer means that, as far as is known, nothing of its request was recorded. It is
        `Unstorable` if the database accepts other events but not these. Any other error means that the database accepts
        no events now, and all later answers are that error too. After an error of the whole group, each request is
        recorded only when the caller asks for its answer.
        """
        if len(requests) > 1:
            try:
                answers = self._append(requests, matches=matches, promised=promised)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
                if not may_be_a_value(error):
                    yield from [error] * len(requests)
                    return
            else:
                yield from answers
                return
        unavailable: Exception | None = None
        for events in requests:
            if unavailable is None:
                try:
                    yield self._alone(events, matches, promised=promised)
                    continue
                except Exception as error:  # noqa: BLE001 - as above
                    unavailable = error
            yield unavailable

    def record_most(
        self, events: Sequence[Event], *, promised: bool = False
    ) -> tuple[list[Receipt | QueueFull], list[tuple[Event, str]]]:
        """Record one request's events, in order, and return the receipts and the refused events with their reasons.

        The events are recorded together. If they are refused, each half is tried, with a receipt of its own. Raises
        what `Log.append` raises if the database accepts no events now.
        """
        [answer] = self.record([events], promised=promised)
        if not isinstance(answer, Exception):
            return [answer], []
        if not isinstance(answer, Unstorable):
            raise answer
        if len(events) == 1:
            return [], [(events[0], str(answer))]
        middle = len(events) // 2
        receipts, refused = self.record_most(events[:middle], promised=promised)
        others, more = self.record_most(events[middle:], promised=promised)
        return receipts + others, refused + more

    def _alone(self, events: Sequence[Event], matches: Matches | None, *, promised: bool) -> Answer:
        """Record one request. Raises errors which mean that the database accepts no events at all."""
        for _ in range(APPEND.max_tries):
            try:
                return self._append([events], matches=matches, promised=promised)[0]
            except Exception as error:
                if not may_be_a_value(error):
                    raise
                check_writable(self._database)
                refused = error
        unstorable = Unstorable(describe_error(refused))
        unstorable.__cause__ = refused
        return unstorable


def check_writable(database: Database) -> None:
    """Insert a small event, delete it and commit. Raises the database's error if it accepts no events now.

    It writes to every table that recording an event writes to, because a permission, a table or a disk may be missing
    for one of them only. No reader sees the event; its seq stays unused.
    """
    e, b, t = tables.events.c, tables.buckets.c, tables.targets.c
    unique = uuid4().hex
    with database.writing() as connection:
        seq = log_head.reserve(connection, 1).last_seq
        connection.execute(
            tables.events.insert().values(
                partition=0, seq=seq, id=unique, key_hash=0, received_at=now_ms(), name="s3:TestEvent",
                bucket="bucketwire-test", key="writable", version="", sequencer="", time=0, targets="", record="{}",
                trace="",
            )
        )  # fmt: skip
        connection.execute(tables.events.delete().where(e.partition == 0, e.seq == seq))
        connection.execute(tables.buckets.insert().values(name=unique, created_at=0))
        connection.execute(tables.buckets.delete().where(b.name == unique))
        connection.execute(tables.targets.update().values(recorded=t.recorded))


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
