"""Renew a lease while a worker delivers, and stop the delivery once another worker may hold the lease.

A process that was suspended (SIGSTOP, a paused virtual machine, a swapped-out host) for longer than its lease continues
as if nothing had happened, and would overwrite newer events that another worker has written meanwhile with older ones.
"""

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from app.outbox.delivery.leases import Lease, Leases
from app.outbox.engine.clock import elapsed
from app.outbox.engine.database import DatabaseUnavailable
from app.outbox.engine.reachability import outbox_state
from workers.delivery import policy
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
        return began + self._lease_seconds * (1 - policy.LEASE_MARGIN)
