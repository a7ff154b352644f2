"""Wait for a target's next events before a lease is released, while another process of the worker is idle.

A lease costs two messages of the broker, a task of Celery and several statements, and reading the log's head one. So a
target that gets a few events now and then is served sooner and at a fraction of the cost by a worker that keeps its
lease and looks again after some milliseconds.
"""

import time
from collections.abc import Callable

from app.outbox.delivery.partition_reader import PartitionReader
from workers.delivery import policy


class EventWait:
    """Decides whether a worker keeps its lease after a batch.

    `may_wait` returns whether another process could take whatever else is due, `is_unchanged` whether the target still
    has the settings and the state with which the lease was claimed. `pause` waits so many seconds.
    """

    def __init__(
        self,
        may_wait: Callable[[], bool],
        is_unchanged: Callable[[], bool] = lambda: True,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._may_wait = may_wait
        self._is_unchanged = is_unchanged
        self._pause = pause
        self._began = self._checked = time.monotonic()
        self._ends = self._began + policy.MAX_WAIT_SECONDS
        self._caught_up = self._began  # when the log was last read to its end

    def wants_next_batch(self, reader: PartitionReader, events: int, *, at_end: bool, shares: bool = False) -> bool:
        """Return whether to read the next batch, after one of `events` events; wait for it if that is worth while.

        `at_end` says that nothing more was due when the batch was read, `shares` that others could work off some of the
        partitions at the same time.
        """
        if not at_end:
            behind = time.monotonic() - self._caught_up >= policy.MAX_BEHIND_SECONDS
            return not (shares and behind and self._may_wait()) and self._is_still_unchanged(policy.CHECK_SECONDS)
        if events > policy.FEW_EVENTS and reader.has_work():
            self._pause(policy.LONG_PAUSE_SECONDS)
            self._caught_up = time.monotonic()
            return self._is_still_unchanged(policy.CHECK_SECONDS)
        self._caught_up = now = time.monotonic()
        if not self._may_wait():  # with few events, whatever waits for this process comes soon
            return (
                now < self._began + policy.WAIT_PATIENCE_SECONDS
                and reader.has_work()
                and self._is_still_unchanged(policy.CHECK_SECONDS)
            )
        ends = min(self._ends, time.monotonic() + policy.WAIT_PATIENCE_SECONDS)
        while time.monotonic() < ends and self._may_wait():
            self._pause(policy.WAIT_PAUSE_SECONDS)
            if reader.has_new_events():
                return self._is_still_unchanged(0)
        return False

    def _is_still_unchanged(self, known_for: float) -> bool:
        """Return whether the target is unchanged; a check is made only if the last one is `known_for` seconds old."""
        now = time.monotonic()
        if now - self._checked < known_for:
            return True
        self._checked = now
        return self._is_unchanged()


class _NoWait(EventWait):
    """Keeps the lease while there is work, as where nothing else waits for the process."""

    def wants_next_batch(self, reader: PartitionReader, events: int, *, at_end: bool, shares: bool = False) -> bool:  # noqa: ARG002 - as above
        return not at_end or reader.has_work()


NO_WAIT = _NoWait(lambda: False)
