"""Record what comes of what runs by time in the drain's process, without ever holding it up or failing it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from app.broker import BrokerUnavailable, QueueRefused
from app.outbox import upkeep
from app.outbox.engine.database import Database, DatabaseUnavailable
from app.outbox.policies import UPKEEP

_NO_DATABASE = "the outbox database was unavailable, or refused a statement"


class TaskRecords:
    """The records of one process; `clock` returns the database's time (ms)."""

    def __init__(self, database: Database, clock: Callable[[], int]) -> None:
        self._database = database
        self._clock = clock
        self._recorded: dict[str, float] = {}  # by task: when its last success was recorded, by time.monotonic()
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
        if time.monotonic() - self._recorded.get(name, float("-inf")) < UPKEEP.record_seconds:
            return
        with suppress(*DatabaseUnavailable):
            self._begin()
            upkeep.record_success(self._database, name, self._clock())
            self._recorded[name] = time.monotonic()

    def _fail(self, name: str, error: Exception) -> None:
        self._recorded.pop(name, None)
        problem = f"unexpected {type(error).__name__}"
        if isinstance(error, DatabaseUnavailable):
            problem = _NO_DATABASE
        with suppress(*DatabaseUnavailable):
            self._begin()
            upkeep.record_failure(self._database, name, self._clock(), f"{problem}; the worker's log says more")

    def _begin(self) -> None:
        if not self._has_begun:
            upkeep.begin_all(self._database, self._clock())
            self._has_begun = True
