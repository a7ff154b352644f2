"""Wait for a target's next events before a lease is released, while another process of the worker is idle.

A lease costs two messages of the broker, a task of Celery and several statements, and reading the log's head one. So a
target that gets a few events now and then is served sooner and at a fraction of the cost by a worker that keeps its
lease and looks again after some milliseconds.
"""

import time
from collections.abc import Callable

from app.outbox.delivery.partition_reader import PartitionReader

# Seconds. Events gather during a pause and are delivered together; after the patience without any, the lease is
# released. The longest time bounds how late a dead letter is replayed meanwhile. It does not bound how late a replay
# begins: that revokes the lease, and waits until it has expired.
_PAUSE, _PATIENCE, _LONGEST = 0.008, 0.05, 1.0
# Seconds. Where many events come in all the time, they gather for longer: a batch costs milliseconds, however small.
_LONG_PAUSE = 0.02
_BEHIND = 0.05  # seconds for which a worker does not get to the end of the log until it lets others share the work
_CHECK = 0.5  # seconds: how often a worker that goes on with a backlog checks that the target is unchanged
FEW = 16  # events of a batch; after more than these a worker goes on, whether others are idle or not


class EventWait:
    """Decides whether a worker goes on with its lease after a batch.

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
        self._ends = self._began + _LONGEST
        self._caught_up = self._began  # when the log was last read to its end

    def wants_next_batch(self, reader: PartitionReader, events: int, *, at_end: bool, shares: bool = False) -> bool:
        """Return whether to read the next batch, after one of so many events; wait for it, if that is worth while.

        `at_end` says that nothing more was due when the batch was read, `shares` that others could work off some of the
        partitions at the same time.
        """
        if not at_end:
            behind = time.monotonic() - self._caught_up >= _BEHIND
            return not (shares and behind and self._may_wait()) and self._checks_unchanged(_CHECK)
        if events > FEW and reader.has_work():
            self._pause(_LONG_PAUSE)
            self._caught_up = time.monotonic()
            return self._checks_unchanged(_CHECK)
        self._caught_up = now = time.monotonic()
        if not self._may_wait():  # with few events, whatever waits for this process comes soon
            return now < self._began + _PATIENCE and reader.has_work() and self._checks_unchanged(_CHECK)
        ends = min(self._ends, time.monotonic() + _PATIENCE)
        while time.monotonic() < ends and self._may_wait():
            self._pause(_PAUSE)
            if reader.has_new_events():
                return self._checks_unchanged(0)
        return False

    def _checks_unchanged(self, known_for: float) -> bool:
        """Return whether the target is unchanged, or was so many seconds ago or less."""
        now = time.monotonic()
        if now - self._checked < known_for:
            return True
        self._checked = now
        return self._is_unchanged()


class _NoWait(EventWait):
    """Goes on while there is work, as where nothing else waits for the process."""

    def wants_next_batch(self, reader: PartitionReader, events: int, *, at_end: bool, shares: bool = False) -> bool:  # noqa: ARG002 - as above
        return not at_end or reader.has_work()


NO_WAIT = _NoWait(lambda: False)
