"""Keep a lease while a worker delivers, and stop the delivery once the lease may be somebody else's.

A process that was stopped (SIGSTOP, a paused virtual machine, a swapped-out host) for longer than its lease goes on as
if nothing had happened, and would write old events over those that another worker has written meanwhile.
"""

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from app.outbox.delivery.leases import Lease, Leases
from app.outbox.engine.clock import elapsed
from app.outbox.engine.database import DatabaseUnavailable
from workers.targets.base import LeaseExpired

log = logging.getLogger("bucketwire.worker")

_MARGIN = 0.1  # share of the lease's time in which nothing is sent any more, for what a request takes to arrive


class LeaseGuard:
    """Renews a lease in a thread of its own for as long as the block goes on; `check()` says whether it still holds.

    `claimed` is `elapsed()` from before the lease was claimed, `term` how long a claim holds, `work` the longest that
    it is worked off from now on (both in seconds), `clock` gives the milliseconds since 1970 by which leases are
    compared.
    """

    def __init__(
        self,
        leases: Leases,
        lease: Lease,
        claimed: float,
        term: float,
        clock: Callable[[], int],
        work: float = float("inf"),
    ) -> None:
        self._leases = leases
        self._lease = lease
        self._term = term
        self._clock = clock
        self._lost = False
        self._work_ends = elapsed() + work
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
        """Whether nobody else can have claimed the lease."""
        return not self._lost and elapsed() < self._ends

    def check(self) -> None:
        """Return if the lease holds; one that has run out and that nobody has claimed meanwhile is renewed.

        Raises `LeaseExpired`.
        """
        if self.holds:
            return
        if not self._lost:
            try:
                self._renew()
            except DatabaseUnavailable:
                raise LeaseExpired("the lease has run out, and the outbox database is away") from None
        if self._lost:
            raise LeaseExpired("somebody else may have the lease")

    def has_time(self) -> bool:
        """Whether the time to work off the lease is not over yet."""
        return elapsed() < self._work_ends

    def _keep(self) -> None:
        while not self._lost and not self._over.wait(self._term / 3):
            try:
                self._renew()
            except DatabaseUnavailable:
                log.warning("the outbox database is away; the lease may run out")

    def _renew(self) -> None:
        with self._renewing:
            began = elapsed()
            if self._leases.renew(self._lease, self._clock()):
                self._ends = self._end(began)
            else:
                self._lost = True

    def _end(self, began: float) -> float:
        return began + self._term * (1 - _MARGIN)
