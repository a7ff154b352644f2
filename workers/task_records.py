"""Record what comes of what runs by time in the drain's process, without ever holding it up or failing it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.broker import BrokerUnavailable, QueueRefused
from app.outbox import upkeep
from app.outbox.engine.database import Database, DatabaseUnavailable
from app.outbox.engine.reachability import outbox_state
from app.outbox.policies import UPKEEP

_NO_DATABASE = "the outbox database was unavailable, or refused a statement"


class TaskRecords:
    """The records of one process; `clock` returns the database's time (ms)."""

    def __init__(self, database: Database, clock: Callable[[], int]) -> None:
        self._database = database
        self._clock = clock
        self._recorded: dict[str, float] = {}  # by task: when its last success was recorded, by time.monotonic()
        # By task: when it failed, by time.monotonic(), and why; of those that could not be recorded yet.
        self._unrecorded: dict[str, tuple[float, str]] = {}
        self._has_begun = False

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        """Record what comes of a task. Raises what the task raises."""
        try:
            yield
        except QueueRefused as error:
            self._fail(name, error)
            raise
        except BrokerUnavailable:
            raise  # which is a finding of its own
        except Exception as error:
            self._fail(name, error)
            raise
        self.succeed(name)

    def succeed(self, name: str) -> None:
        """Record that a task has succeeded, unless that is on record for the last seconds."""
        self._unrecorded.pop(name, None)
        if time.monotonic() - self._recorded.get(name, float("-inf")) >= UPKEEP.record_seconds:
            self._try(lambda: self._record_success(name))
        if self._unrecorded:
            self._try(self._record_failures)

    def _fail(self, name: str, error: Exception) -> None:
        self._recorded.pop(name, None)
        problem = f"unexpected {type(error).__name__}"
        if isinstance(error, QueueRefused):
            problem = str(error)
        elif isinstance(error, DatabaseUnavailable):
            problem = _NO_DATABASE
        self._unrecorded[name] = time.monotonic(), f"{problem}; the worker's log says more"
        if not isinstance(error, DatabaseUnavailable):  # else that would fail, too, after another wait
            self._try(self._record_failures)

    def _record_success(self, name: str) -> None:
        upkeep.record_success(self._database, name, self._clock())
        self._recorded[name] = time.monotonic()

    def _record_failures(self) -> None:
        """Record the failures that are not on record, with their times; those that are left are recorded later."""
        for name, (failed_at, problem) in list(self._unrecorded.items()):
            at = self._clock() - int((time.monotonic() - failed_at) * 1000)
            upkeep.record_failure(self._database, name, at, problem)
            del self._unrecorded[name]

    def _try(self, record: Callable[[], None]) -> None:
        """Record something within a bounded time; that the database does not take it is logged, and fails nothing."""
        try:
            with self._database.answering_within(UPKEEP.statement_seconds):
                self._begin()
                record()
        except DatabaseUnavailable as error:
            outbox_state.failed(error)

    def _begin(self) -> None:
        if not self._has_begun:
            upkeep.begin_all(self._database, self._clock())
            self._has_begun = True
