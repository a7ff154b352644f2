"""What a worker process works with: its database, its open targets, and the jobs that the tasks call."""

import contextlib
import logging
import math
import os
import time
import uuid
from collections.abc import Callable, Sequence
from random import Random

from app.config.arn import TargetId
from app.config.settings import Settings
from app.config.target_settings import BadSettings
from app.logs import printable
from app.outbox import audit, series
from app.outbox.delivery import attempts, heartbeats, rate_limits
from app.outbox.delivery.breaker_state import close_breaker, count_failures, open_breaker
from app.outbox.delivery.leases import Lease, LeaseLost, Leases, Offer
from app.outbox.delivery.openings import Opening
from app.outbox.delivery.parked import HeadRepair
from app.outbox.delivery.ready_targets import HARD_LIMIT, time_limit
from app.outbox.delivery.settlement_store import SettlementStore
from app.outbox.engine.clock import DatabaseClock, elapsed
from app.outbox.engine.database import Database, DatabaseUnavailable, describe_error
from app.outbox.log.retention import PurgeProgress, purge
from app.outbox.markers import NEVER
from app.outbox.registry import open_registry
from app.outbox.targets import StoredTarget, UnknownTarget
from app.wakeups import WakeUps
from workers.delivery.breaker import back_off
from workers.delivery.event_wait import EventWait
from workers.delivery.lease_guard import LeaseGuard
from workers.delivery.outcomes import Unavailable
from workers.delivery.partition_worker import LeaseSummary, OpenTarget, PartitionWorker
from workers.delivery.redelivery_requests import RedeliveryRequests
from workers.idle_processes import processes
from workers.target_opening import TargetOpener
from workers.target_pool import TargetPool
from workers.targets.base import LeaseExpired
from workers.telemetry import metrics
from workers.telemetry.attempt_recorder import AttemptRecorder

log = logging.getLogger("bucketwire.worker")

_REPAIR_INTERVAL = 60.0  # seconds
_DROP_INTERVAL = 600.0  # seconds
# Seconds. The drain runs in the same process and waits during a purge. If that has not removed everything, it continues
# after a pause, so that it keeps up with the log.
_LONGEST_PURGE, _PURGE_PAUSE = 0.3, 0.3
_SHUTDOWN_PATIENCE = 10.0  # seconds for redelivery requests that the outbox database has not recorded yet
_LIMITS_KNOWN = 5.0  # seconds for which a target's time limit is cached
_ALARMS_APART = 0.05  # seconds: retries that are due shortly after each other share a drain
_RETRIES = 3  # the first that meets a lost connection replaces them all


class Runtime:
    """The state of one worker process; `current()` creates it again after a fork."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.database = Database(settings.database_url, patience=settings.database_timeout)
        self.clock = DatabaseClock(self.database)
        self.lease_ms = int(settings.lease_ttl * 1000)
        self.leases = Leases(self.database, self.lease_ms)
        self.store = SettlementStore(self.database, self.lease_ms)
        self.registry = open_registry(self.database, settings)
        self.pool = TargetPool(self.registry, settings)
        self._opener = TargetOpener(self.database, self.registry, settings, self.clock)
        self._rng = Random()  # noqa: S311 - jitter, not a secret
        self._tidied = 0.0
        self._unused_dropped = -_DROP_INTERVAL
        self._purge_progress = PurgeProgress()
        self._next_purge = math.inf  # when a purge that was interrupted goes on, by time.monotonic()
        self._head_repair = HeadRepair(self.database)
        self._repaired = 0.0
        self._is_unavailable = False
        self._limits: dict[TargetId, tuple[float, int]] = {}  # when each was looked up, and its value
        self.wakeups = WakeUps(settings.broker_url)
        self.attempts = AttemptRecorder(self.database)
        self.redeliveries = RedeliveryRequests(self.database, settings.folder, self.wakeups.request)

    def drain(
        self,
        publish: Callable[[Offer], None],
        queued: Callable[[TargetId], int] = lambda _: 0,
        publish_opening: Callable[[Opening], None] | None = None,
    ) -> int:
        """Offer every free partition with due work and publish the wake-ups; have targets opened that were set.

        `queued` returns how many wake-ups wait in a target's queue. Return how many were published, 0 while the
        database is unavailable. When a retry or a probe is due, the drain is woken again.
        """
        try:
            offered = self._drain(publish, queued)
            if publish_opening is not None:
                self._opener.offer(publish_opening, queued)
        except DatabaseUnavailable as error:
            self._note_unavailable(error)
            return 0
        self._note_available()
        return offered

    def deliver(self, target: TargetId, partitions: Sequence[int]) -> str:
        """Claim the free ones of `partitions`, work them off, and return a one-line summary."""
        # After a database outage the first use of a pooled connection fails. A wake-up that fails delays its partitions
        # by the time of a lease, so this call opens a new connection instead of leaving that to the next one.
        for _ in range(_RETRIES):
            try:
                done = self._deliver(target, partitions)
            except DatabaseUnavailable as error:
                failure = error
            else:
                self._note_available()
                return done
        self._note_unavailable(failure)
        return "the outbox database is unavailable"

    def open_target(self, opening: Opening) -> str:
        """Open a target that was set, and record the result; return it as one line."""
        try:
            return self._opener.open(opening)
        except UnknownTarget:
            return "the target was removed"
        except DatabaseUnavailable as error:
            self._note_unavailable(error)
            return "the outbox database is unavailable"

    def time_limit(self, target: TargetId) -> int:
        """Return the longest time (seconds) that one delivery to this target may take; cached for some seconds."""
        known = self._limits.get(target)
        if known is None or time.monotonic() - known[0] > _LIMITS_KNOWN:
            try:
                settings = self.registry.settings(self.registry.target(target))
                limit = time_limit(settings, self.settings.lease_max_work)
            except (UnknownTarget, BadSettings):  # `deliver` handles these
                limit = HARD_LIMIT
            known = self._limits[target] = time.monotonic(), limit
        return known[1]

    def probe_queues(self, publish: Callable[[heartbeats.Queue], None]) -> int:
        """Send a heartbeat task to each target's queue, where one is due; return how many were sent."""
        try:
            due = heartbeats.queues_to_probe(self.database, self.clock())
        except DatabaseUnavailable as error:
            self._note_unavailable(error)
            return 0
        for queue in due:
            publish(queue)
        return len(due)

    def queue_alive(self, row_id: int) -> None:
        """Record that a worker serves the queue of the target with this row id."""
        try:
            heartbeats.answered(self.database, row_id, self.clock())
        except DatabaseUnavailable as error:
            self._note_unavailable(error)

    def purge(self) -> int:
        """Remove settled events older than the retention; return how many, 0 while the database is unavailable.

        It stops after a short time; then the next drains of this process go on with it.
        """
        unused = time.monotonic() - self._unused_dropped > _DROP_INTERVAL
        self._next_purge = math.inf
        try:
            older_than = self.clock() - int(self.settings.retention * 1000)
            if unused:
                audit.purge(self.database, self.clock() - int(self.settings.audit_retention * 1000))
                with self.database.writing() as connection:
                    attempts.forget_removed(connection)
                    rate_limits.forget_removed(connection)
            removed = purge(
                self.database, older_than, seconds=_LONGEST_PURGE, unused=unused, progress=self._purge_progress
            )
        except DatabaseUnavailable as error:
            self._note_unavailable(error)
            return 0
        if unused:
            self._unused_dropped = time.monotonic()
        if self._purge_progress.is_behind:
            self._next_purge = time.monotonic() + _PURGE_PAUSE
            self.wakeups.request(_PURGE_PAUSE)
        return removed

    def sample(self) -> bool:
        """Store a sample of every target's counters, once in each step; return whether this call did."""
        try:
            return series.take_sample(self.database)
        except DatabaseUnavailable as error:
            self._note_unavailable(error)
            return False

    def close(self) -> None:
        """Close targets and database; allow some time to record pending redelivery requests."""
        self.redeliveries.close(_SHUTDOWN_PATIENCE)
        self.attempts.close()
        self.wakeups.close()
        self.pool.close()
        self.database.close()

    def _drain(self, publish: Callable[[Offer], None], queued: Callable[[TargetId], int]) -> int:
        now = self.clock()
        offers = self.leases.offer(now, queued)
        for offer in offers:
            publish(offer)
        if self.leases.next_at < NEVER:
            self.wakeups.request(max(_ALARMS_APART, (self.leases.next_at - self.clock()) / 1000))
        if time.monotonic() - self._tidied > 1:
            self._tidied = time.monotonic()
            if self.leases.advance_idle(now):
                self.wakeups.request()
            heartbeats.record(self.database, heartbeats.DRAIN, now)
        if time.monotonic() >= self._next_purge:
            self.purge()
        elif self._next_purge < math.inf:
            self.wakeups.request(self._next_purge - time.monotonic())
        if time.monotonic() - self._repaired > _REPAIR_INTERVAL:
            self._repaired = time.monotonic()
            self._repair_heads()
        return len(offers)

    def _repair_heads(self) -> None:
        for target, objects in self._head_repair.run().items():
            arn = target.arn(self.settings.region)
            log.warning(
                "%s: repaired %d objects whose parked events had no head, or several; please report this as a defect",
                arn,
                objects,
                extra={"target": arn, "objects": objects},
            )

    def _deliver(self, target: TargetId, partitions: Sequence[int]) -> str:
        try:
            stored = self.registry.target(target)
        except UnknownTarget:
            return "the target was removed"
        self.redeliveries.record()  # before a process that may have written too late claims anything else
        claimed, now = elapsed(), self.clock.measure()
        running = stored.state == "running"
        # While the others are idle and the target is quick, one worker that waits for its next events costs least.
        with_free = processes.any_idle() and self.pool.is_quick(stored)
        lease = self.leases.claim(
            stored.row_id, partitions, uuid.uuid4().hex, now, running=running, with_free=with_free
        )
        if lease is None:
            return "nothing to claim"
        try:
            term, work = self.settings.lease_ttl, self.settings.lease_max_work
            with LeaseGuard(self.leases, lease, claimed, term, self.clock, work) as guard:
                summary = self._work_off(lease, guard, stored)
        except (LeaseLost, LeaseExpired):
            arn = target.arn(self.settings.region)
            log.warning("%s lease lost: its current batch may be delivered again", arn, extra={"target": arn})
            if (seen := metrics.of(arn)) is not None:
                seen.lost_lease()
            return "lease lost"
        except BadSettings as error:
            open_breaker(self.database, lease.target_id, str(error), self.clock() + 60_000, probing=True)
            self.wakeups.request()  # so that the drain learns when to probe
            return f"bad settings: {error}"
        finally:
            self.leases.release(lease)
        self._wake_drain(lease)
        if summary.answered:
            with contextlib.suppress(*DatabaseUnavailable):  # a delivery that is settled must not be repeated for it
                self._opener.answered(stored)
        return str(summary)

    def _wake_drain(self, lease: Lease) -> None:
        """Have the drain run if there is work that it did not see while the lease was held."""
        with contextlib.suppress(*DatabaseUnavailable):  # beat's next drain finds it
            # A probe kept the target's other partitions from being offered.
            if lease.probing or self.leases.left(lease):
                self.wakeups.request()

    def _work_off(self, lease: Lease, guard: LeaseGuard, stored: StoredTarget) -> LeaseSummary:
        work = self.pool.work(stored)
        partitions = PartitionWorker(self.store, work, lease, self.clock, guard, self.attempts)
        wait = EventWait(
            lambda: processes.any_idle() and not lease.probing,
            lambda: self._is_unchanged(stored, work),
            shares=len(lease.positions) > 1,
        )
        try:
            summary = partitions.work_off(lambda: not guard.has_time(), wait)
        except (LeaseLost, LeaseExpired):
            self.redeliveries.add(lease.target_id, work.name, partitions.unsettled())
            raise
        except DatabaseUnavailable:
            if not guard.holds:  # what was sent cannot be settled, and another worker may have sent newer events
                self.redeliveries.add(lease.target_id, work.name, partitions.unsettled())
            raise
        if summary.unavailable is not None:
            self._open_breaker(lease, work.name, summary.unavailable)
        elif lease.probing and summary.answered:
            close_breaker(self.database, lease.target_id)
            log.info("%s is available again", work.name, extra={"target": work.name})
        return summary

    def _is_unchanged(self, stored: StoredTarget, work: OpenTarget) -> bool:
        try:
            found = self.registry.target(stored.target)
            same = (found.row_id, found.revision, found.state) == (stored.row_id, stored.revision, stored.state)
            return same and self.pool.work(stored) is work
        except (UnknownTarget, BadSettings):
            return False

    def _open_breaker(self, lease: Lease, arn: str, why: Unavailable) -> None:
        wait = back_off(1 + count_failures(self.database, lease.target_id), self._rng, why.retry_after)
        resume_at = self.clock() + wait
        opened = open_breaker(
            self.database, lease.target_id, why.reason, resume_at, probing=lease.probing, pause=why.pause
        )
        self.wakeups.request()  # so that the drain learns when to probe
        if opened and (seen := metrics.of(arn)) is not None:
            seen.opened_breaker()
        members = {"target": arn, "outcome": "unavailable", "next_probe_in": wait / 1000, "reason": why.reason}
        log.warning("%s unavailable, next probe in %.1f s: %s", arn, wait / 1000, printable(why.reason), extra=members)

    def _note_unavailable(self, error: Exception) -> None:
        if not self._is_unavailable:
            log.warning("the outbox database is unavailable: %s", describe_error(error))
        self._is_unavailable = True

    def _note_available(self) -> None:
        if self._is_unavailable:
            log.info("the outbox database is available again")
        self._is_unavailable = False


def parse_partitions(text: str) -> list[int]:
    """Return the numbers that `format_partitions` wrote."""
    partitions: list[int] = []
    for run in text.split(","):
        first, _, last = run.partition("-")
        partitions.extend(range(int(first), int(last or first) + 1))
    return partitions


_current: tuple[int, Runtime] | None = None


def forget() -> None:
    """Close what this process has open; the next use creates it again. A forked child only drops the parent's."""
    global _current  # noqa: PLW0603 - see current()
    if _current is not None and _current[0] == os.getpid():
        _current[1].close()
    _current = None


def current() -> Runtime:
    """Return this process's runtime; the first use creates it."""
    global _current  # noqa: PLW0603 - one for each process is the point
    if _current is None or _current[0] != os.getpid():
        _current = (os.getpid(), Runtime(Settings.from_environ(os.environ)))
    return _current[1]
