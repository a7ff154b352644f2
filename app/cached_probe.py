"""Query the database with a bounded wait, so that a hanging database does not block the threads of requests."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from app.per_process import PerProcess

T = TypeVar("T")


class NoAnswer(Exception):
    """The database did not answer in time; the query is still running, and its result may come later."""


@dataclass(frozen=True, slots=True)
class ProbeResult(Generic[T]):
    """The last value that was read, and the error of the last query if it failed. `began`: when, by `monotonic()`."""

    value: T | None = None
    error: Exception | None = None
    began: float = float("-inf")


@dataclass(slots=True)
class _LastResult(Generic[T]):
    """The state of the probe in one process."""

    last: ProbeResult[T] = field(default_factory=ProbeResult)
    answered: float = float("-inf")
    running: Future[ProbeResult[T]] | None = None
    began: float = 0.0
    waiting: int = 0  # callers
    waiting_for_new: int = 0  # callers


class CachedProbe(Generic[T]):
    """A value that is read again when it is older than `age` seconds, by one thread at a time in each process.

    `get()` returns within `patience` seconds of the start of the query, even if the database hangs. Where `max_waiting`
    others wait already it returns the last value at once, so that queries which take long occupy few threads.
    """

    def __init__(self, read: Callable[[], T], *, age: float, patience: float, max_waiting: int | None = None) -> None:
        self._read = read
        self._max_waiting = max_waiting
        self._age = age
        self._patience = patience
        self._lock = threading.Lock()
        self._known: PerProcess[_LastResult[T]] = PerProcess(_LastResult)

    def get_new(self, *, pause: float, max_waiting: int) -> ProbeResult[T]:
        """Return a value that is read from now on, if it is there in time; otherwise the last one.

        Callers within `pause` seconds share a query. Where `max_waiting` others wait already the last value is returned
        at once: however many ask for what is not there, few threads and few queries are spent on them.
        """
        asked = time.monotonic()
        with self._lock:
            known = self._known.get()
            if known.waiting_for_new >= max_waiting:
                return known.last
            known.waiting_for_new += 1
        try:
            time.sleep(max(0.0, min(pause, known.began + pause - asked)))
            result = self.get(begun_after=asked)
            while result.error is None and result.began < asked:  # of a query that had begun before
                result = self.get(begun_after=asked)
        finally:
            with self._lock:
                known.waiting_for_new -= 1
        return result

    def get(self, *, begun_after: float = float("-inf")) -> ProbeResult[T]:
        """Return the value, read again if it is too old; without an answer in time, the last one with `NoAnswer`.

        It is too old also if its query began before `begun_after`, by `monotonic()`; one that is running is waited for.
        """
        with self._lock:
            known = self._known.get()
            if known.running is None:
                if time.monotonic() - known.answered < self._age and known.began >= begun_after:
                    return known.last
                query = Future[ProbeResult[T]]()
                began = time.monotonic()
                thread = threading.Thread(
                    target=self._query, args=(known, query, began), name="cached-probe", daemon=True
                )
                try:
                    thread.start()
                except RuntimeError as error:  # the process may have no more threads; the next caller tries again
                    return ProbeResult(known.last.value, error)
                known.running, known.began = query, began
            if self._max_waiting is not None and known.waiting >= self._max_waiting:
                if known.last.value is None:
                    return ProbeResult(None, NoAnswer("others wait for the first answer; ask again in some seconds"))
                return known.last
            known.waiting += 1
            running, waits = known.running, known.began + self._patience - time.monotonic()
        try:
            return running.result(max(0.0, waits))
        except TimeoutError:
            return ProbeResult(known.last.value, NoAnswer(f"no answer from the database within {self._patience:g} s"))
        finally:
            with self._lock:
                known.waiting -= 1

    def _query(self, known: _LastResult[T], running: Future[ProbeResult[T]], began: float) -> None:
        try:
            result: ProbeResult[T] = ProbeResult(self._read(), None, began)
        except Exception as error:  # noqa: BLE001 - the caller decides what an error means
            result = ProbeResult(known.last.value, error, began)
        with self._lock:
            known.last, known.answered, known.running = result, time.monotonic(), None
        running.set_result(result)
