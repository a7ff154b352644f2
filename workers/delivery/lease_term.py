"""How long a worker keeps a lease: renew it, stop once another may hold it, wait for more events before it is released.

A process that was suspended (SIGSTOP, a paused virtual machine, a swapped-out host) for longer than its lease continues
as if nothing had happened, and would overwrite newer events that another worker has written meanwhile with older ones.
A lease is renewed each third of its time, and by each settlement: another worker may claim it after two thirds of the
time, or all of it, since the process was suspended. Whether one in the same pool does depends on its other targets
(`ProcessStates.serving`).

A lease costs two messages of the broker, a task of Celery and several statements, and reading the log's head one. So a
target that gets a few events now and then is served sooner and at a fraction of the cost by a worker that keeps its
lease while another process of its pool is idle, and looks again after some milliseconds.
"""

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from app.outbox.delivery.leases import Lease, Leases
from app.outbox.delivery.partition_reader import PartitionReader
from app.outbox.engine.clock import elapsed
from app.outbox.engine.database import DatabaseUnavailable
from app.outbox.engine.db_errors import outbox_state
from workers.delivery import retry
from workers.targets.base import LeaseExpired

log = logging.getLogger("bucketwire.worker")


class LeaseGuard:
    """Renew a lease in a background thread for the duration of the block; `check()` verifies that it still holds.

    `claimed` is `elapsed()` from before the lease was claimed, `lease_seconds` is how long a claim holds, `max_seconds`
    is the longest time to work off the lease from now on, and `clock` returns the milliseconds since 1970 by which
    leases are compared.
    """

    def __init__(
        self,
        leases: Leases,
        lease: Lease,
        claimed: float,
        lease_seconds: float,
        clock: Callable[[], int],
        max_seconds: float = float("inf"),
    ) -> None:
        self._leases = leases
        self._lease = lease
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._lost = False
        self._work_ends = elapsed() + max_seconds
        self._ends = self._end(claimed)
        self._renewing = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    @property
    def holds(self) -> bool:
        """Whether no other worker can have claimed the lease."""
        return not self._lost and elapsed() < self._ends

    def check(self) -> None:
        """Return if the lease holds; renew it if it has expired and nobody has claimed it meanwhile.

        Raises `LeaseExpired`.
        """
        if self.holds:
            return
        if not self._lost:
            try:
                self._renew()
            except DatabaseUnavailable:
                raise LeaseExpired("the lease has expired, and the outbox database is unavailable") from None
        if self._lost:
            raise LeaseExpired("another worker may have the lease")

    def has_time(self) -> bool:
        """Return whether there is time left to work off the lease."""
        return elapsed() < self._work_ends

    def _keep(self) -> None:
        while not self._lost and not self._over.wait(self._lease_seconds / 3):
            try:
                self._renew()
            except DatabaseUnavailable as error:
                outbox_state.failed(error)

    def _renew(self) -> None:
        with self._renewing:
            began = elapsed()
            if self._leases.renew(self._lease, self._clock()):
                self._ends = self._end(began)
            else:
                self._lost = True

    def _end(self, began: float) -> float:
        return began + self._lease_seconds * (1 - retry.LEASE_MARGIN)


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
        self._ends = self._began + retry.MAX_WAIT_SECONDS
        self._caught_up = self._began  # when the log was last read to its end

    def wants_next_batch(self, reader: PartitionReader, events: int, *, at_end: bool, shares: bool = False) -> bool:
        """Return whether to read the next batch, after one of `events` events; wait for it if that is worth while.

        `at_end` says that nothing more was due when the batch was read, `shares` that others could work off some of the
        partitions at the same time.
        """
        if not at_end:
            behind = time.monotonic() - self._caught_up >= retry.MAX_BEHIND_SECONDS
            return not (shares and behind and self._may_wait()) and self._is_still_unchanged(retry.CHECK_SECONDS)
        if events > retry.FEW_EVENTS and reader.has_work():
            self._pause(retry.LONG_PAUSE_SECONDS)
            self._caught_up = time.monotonic()
            return self._is_still_unchanged(retry.CHECK_SECONDS)
        self._caught_up = now = time.monotonic()
        if not self._may_wait():  # with few events, whatever waits for this process comes soon
            return (
                now < self._began + retry.WAIT_PATIENCE_SECONDS
                and reader.has_work()
                and self._is_still_unchanged(retry.CHECK_SECONDS)
            )
        ends = min(self._ends, time.monotonic() + retry.WAIT_PATIENCE_SECONDS)
        while time.monotonic() < ends and self._may_wait():
            self._pause(retry.WAIT_PAUSE_SECONDS)
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
