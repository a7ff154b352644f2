"""Wait for a target's next events before a lease is released, while another process of the worker is idle.

A lease costs two messages of the broker, a task of Celery and several statements, and reading the log's head one. So a
target that gets a few events now and then is served sooner and at a fraction of the cost by a worker that keeps its
lease and looks again after some milliseconds.
"""

import time
from collections.abc import Callable

from app.outbox.delivery.partition_reader import PartitionReader

# Seconds. Events gather during a pause and are delivered together; after the patience without any, the lease is
# released. The longest time bounds how late a replay begins, and how late a dead letter is replayed, meanwhile.
_PAUSE, _PATIENCE, _LONGEST = 0.008, 0.05, 1.0
_FEW = 16  # events; after more than these there is no pause while there are others


class EventWait:
    """Decides whether a worker goes on with its lease after a batch.

    `may_wait` returns whether another process could take whatever else is due, `is_unchanged` whether the target still
    has the settings and the state with which the lease was claimed. `shares` says that the lease has partitions that
    others could work off at the same time.
    """

    def __init__(
        self, may_wait: Callable[[], bool], is_unchanged: Callable[[], bool] = lambda: True, *, shares: bool = False
    ) -> None:
        self._may_wait = may_wait
        self._is_unchanged = is_unchanged
        self._shares = shares
        self._ends = time.monotonic() + _LONGEST

    def goes_on(self, reader: PartitionReader, events: int, *, at_end: bool) -> bool:
        """Return whether to read the next batch, after one of so many events; wait for it, if that is worth while.

        `at_end` says that the partitions had no further events when the batch was read.
        """
        if not at_end:
            return events <= _FEW or not (self._shares and self._may_wait())
        if (events > _FEW or not self._may_wait()) and reader.has_work():
            return True
        ends = min(self._ends, time.monotonic() + _PATIENCE)
        while time.monotonic() < ends and self._may_wait():
            time.sleep(_PAUSE)
            if reader.has_new_events():
                return self._is_unchanged()
        return False


NO_WAIT = EventWait(lambda: False)
