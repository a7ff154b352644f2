"""Have Spark list the watched buckets that are due: a wake-up for each, and the process that a worker starts for one.

The table of sources holds the state, as for what a worker of the sources lists. The worker that gets a wake-up leases
the source, and the process goes on by that lease: two never list a bucket at once.
"""

import logging
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from app.config.sources.source_id import SourceId
from app.outbox.delivery.leases import LeaseLost
from app.outbox.engine.clock import DatabaseClock
from app.outbox.engine.database import Database, DatabaseUnavailable
from app.outbox.reconcile.runs import STOPPED_EARLY
from app.outbox.sources.leases import SourceLease, SourceLeases
from app.outbox.sources.stored import StoredSource
from workers.reconcile_jobs import JOB, JobResult, Repeats, jobs

log = logging.getLogger("bucketwire.worker")

_START_MS = 120_000  # of a lease that the process has not renewed yet: Python and Java start meanwhile
RETRY_MS = 900_000  # until a bucket is listed again for which the process has failed: a listing of it may be long


class ListingWakeUps:
    """Publish a wake-up for each bucket that Spark has to list now, and repeat it at intervals."""

    def __init__(self) -> None:
        self._repeats = Repeats()

    def publish_due(self, database: Database, clock: DatabaseClock, publish: Callable[[SourceId], None]) -> int:
        """Publish wake-ups and return their number. Raises `DatabaseUnavailable`."""
        free = SourceLeases(database, _START_MS).free(clock(), by_spark=True)
        # One that was set or resumed is due again.
        waiting = {f"{stored.source} {stored.revision} {stored.resume_at}": stored.source for stored in free}
        due = self._repeats.due(waiting)
        for name in due:
            publish(waiting[name])
            self._repeats.noted(name)
        return len(due)


wake_ups = ListingWakeUps()


def list_bucket(database: Database, clock: DatabaseClock, source: SourceId) -> str:
    """Have a process list a bucket, unless it is not due or somebody else lists it; return its result in one line."""
    leases = SourceLeases(database, _START_MS)
    free = {stored.source: stored for stored in leases.free(clock(), by_spark=True)}
    lease = leases.claim(free[source], clock()) if source in free else None
    if lease is None:
        return "not due"
    started = time.monotonic()
    result = jobs.run([*JOB, *job_arguments(lease.stored, lease.token)], f"listing {source}")
    if result.code:
        if result.code < 0:  # its last words say nothing of it
            memory = "; was there too little memory?" if -result.code == signal.SIGKILL else ""
            result = JobResult(result.code, f"its process was ended by signal {-result.code}{memory}")
        _end(leases, lease, clock, result)
        log.error("source %s was not listed: %s", source, result.message)
    else:
        log.info("source %s: %s in %.0f s", source, result.message, time.monotonic() - started)
    return result.message


def job_arguments(stored: StoredSource, token: str) -> list[str]:
    """Return the arguments of the process that lists a bucket by a lease."""
    return ["watched-bucket", "--lease", token, "--", str(stored.source)]


def _end(leases: SourceLeases, lease: SourceLease, clock: DatabaseClock, result: JobResult) -> None:
    """End the lease of a process that has not done it: it may have been killed, or not have begun."""
    with suppress(LeaseLost, *DatabaseUnavailable):
        if result.message == STOPPED_EARLY or result.code == os.EX_TEMPFAIL:
            leases.release(lease)
        else:
            now = clock()
            leases.fail(lease, now, result.message, now + RETRY_MS)
