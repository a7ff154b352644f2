"""The thread of a source: it has the source's lease, and every error of it ends there and is shown with the source.

The numbers by which sources are pulled from stand first, with their units and the reasons for them.
"""

import logging
import threading
import time
import traceback
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from app.config.errors import BadSettings
from app.config.secret_texts import Redaction
from app.config.sources.base import SourceSettings
from app.events.limits import Limits
from app.outbox.column_values import clean_reason
from app.outbox.delivery.leases import LeaseLost
from app.outbox.engine.clock import DatabaseClock
from app.outbox.engine.database import Database, DatabaseUnavailable
from app.outbox.engine.db_errors import outbox_state
from app.outbox.log.append import Receipt
from app.outbox.sources.intake import ShelfFull
from app.outbox.sources.registry import SourceRegistry
from app.outbox.sources.rows import SourceLease, SourceLeases
from workers.sources.base import SourceUnavailable

PULL_SECONDS = 0.5  # that a pull waits for messages: a change by an operator is noticed within it
REPORT_SECONDS = 2.0  # between two reports of a source's lag; an unreachable queue is noticed by it
READ_SECONDS = 0.5  # after which no further message of a pull is read before the queue hears of its consumer again
COMMIT_BYTES = 1 << 24  # of the records in one commit, unless a single message has more
FIRST_RETRY_MS, MAX_RETRY_MS = 500, 5_000  # so that pulling resumes within seconds after the queue is back
FIRST_FULL_SECONDS, MAX_FULL_SECONDS = 0.25, 8.0  # between two tries while a target has no room
SEARCH_SECONDS = 1.0  # between two searches for sources that nobody pulls from
MAX_STEP_SECONDS = 120.0  # that a step may take before the lease is no longer renewed: the thread hangs
STOP_SECONDS = 20.0  # for which a worker that ends waits for the last commits
FOUND_EVENTS = 500  # most events of what a listing has found in one commit
BAD_LISTING_MS = 60_000  # until a bucket is listed again whose listing could not be believed
MAX_LISTED = 10_000_000  # entries of a listing, which are 400 MB in a temporary file


log = logging.getLogger("bucketwire.sources")


@dataclass(frozen=True, slots=True)
class Outbox:
    """What the sources of a process share. `wake` is called with each receipt."""

    database: Database
    leases: SourceLeases
    registry: SourceRegistry
    clock: DatabaseClock
    lease_ms: int
    retention_ms: int
    limits: Callable[[], Limits]
    wake: Callable[[Receipt], None]


class Stopped(Exception):
    """The worker ends before everything that was taken is recorded."""


class SourceThread(threading.Thread):
    """Take events from a source until it is stopped, or its lease is lost, or it fails; then the lease is released.

    `stepped_at` is when it last began a step, by `time.monotonic()`: whoever renews its lease sees whether it hangs.
    """

    def __init__(self, outbox: Outbox, lease: SourceLease, ending: threading.Event) -> None:
        super().__init__(name=f"source-{lease.stored.source}", daemon=True)
        self.lease = lease
        self.stepped_at = time.monotonic()
        self._outbox = outbox
        self._ending = ending
        self._hide: Callable[[str], str] = str

    @abstractmethod
    def _take(self, settings: SourceSettings) -> None:
        """Take events until the worker ends."""

    def run(self) -> None:
        """Take events; every error ends here, is logged, and is shown with the source."""
        name = self.lease.stored.source
        try:
            settings = self._outbox.registry.settings(self.lease.stored)
            self._hide = Redaction(settings).hide
            self._take(settings)
            self._settle(lambda: self._outbox.leases.release(self.lease))
        except LeaseLost as error:
            log.warning("source %s is no longer this worker's: %s", name, error)
        except ShelfFull as error:
            full = str(error)
            log.warning("source %s is paused: %s", name, full)
            self._settle(lambda: self._outbox.leases.pause(self.lease, full))
        except (SourceUnavailable, BadSettings) as error:
            self._fail(self._hide(str(error)))
        except Stopped:
            self._settle(lambda: self._outbox.leases.release(self.lease))
        except DatabaseUnavailable as error:
            outbox_state.failed(error)
            self._settle(lambda: self._outbox.leases.release(self.lease))
        except Exception as error:  # noqa: BLE001 - whatever it is, the source is tried again
            log.error("source %s failed: %s", name, self._hide("".join(traceback.format_exception(error))))  # noqa: TRY400
            self._fail(f"unexpected error, see the worker's log: {type(error).__name__}", least=self._retry_ms)

    @property
    def _retry_ms(self) -> int:
        """The least time until the source is tried again after an error that nobody expected."""
        return FIRST_RETRY_MS

    def _step(self) -> None:
        self.stepped_at = time.monotonic()

    def _fail(self, reason: str, least: int = FIRST_RETRY_MS) -> None:
        """Release a source that fails, until it is tried again: after `least` ms, or more if it has failed before."""
        stored = self.lease.stored
        wait = max(least, min(FIRST_RETRY_MS * 2 ** min(stored.failures, 10), MAX_RETRY_MS))
        # The 1st, 2nd, 4th, 8th … in a row, and another reason: to be away for a day fills no log.
        if (stored.failures + 1).bit_count() == 1 or clean_reason(reason) != stored.error:
            log.warning("source %s cannot be pulled from; tried again in %d ms: %s", stored.source, wait, reason)

        def failed() -> None:
            now = self._outbox.clock()
            self._outbox.leases.fail(self.lease, now, reason, now + wait)

        self._settle(failed)

    @staticmethod
    def _settle(write: Callable[[], None]) -> None:
        """Write the end of a lease; if that is not possible, it runs out."""
        try:
            write()
        except (LeaseLost, *DatabaseUnavailable):
            return
