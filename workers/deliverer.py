"""Claim what is due of a target, deliver its events, and record what became of them."""

import contextlib
import logging
import time
from functools import partial
from random import Random

from app.config.arn import TargetId
from app.config.target_settings import BadSettings
from app.logs import printable
from app.outbox.declared import OPENED, StoredTarget, UnknownTarget
from app.outbox.delivery.availability import (
    begin_opening,
    close_breaker,
    count_failures,
    open_breaker,
    record_opening,
)
from app.outbox.delivery.leases import Lease, LeaseLost, new_token
from app.outbox.delivery.settlement_store import SettlementStore
from app.outbox.delivery.transitions import try_all_now
from app.outbox.engine.clock import elapsed
from app.outbox.engine.database import DatabaseUnavailable
from app.outbox.engine.db_errors import outbox_state
from app.outbox.processes import record_certificates_of_target
from workers.delivery.lease_term import EventWait, LeaseGuard
from workers.delivery.outcomes import Unavailable
from workers.delivery.partition_worker import LeaseSummary, PartitionWorker
from workers.delivery.pooled_target import PooledTarget
from workers.delivery.retry import back_off
from workers.idle_processes import processes
from workers.resources import Resources
from workers.targets.base import LeaseExpired
from workers.telemetry import metrics

log = logging.getLogger("bucketwire.worker")

_OPENABLE = ("running", "unavailable")  # the states of a target that may be contacted
_MAX_TRIES = 3  # the first that meets a lost connection replaces them all


class Deliverer:
    """Works off leases of a target's partitions, and opens a target that was set while nothing of it is due."""

    def __init__(self, held: Resources) -> None:
        self._held = held
        self._store = SettlementStore(held.database, int(held.settings.lease_ttl * 1000))
        self._rng = Random()  # noqa: S311 - jitter, not a secret

    def deliver(self, target: TargetId) -> str:
        """Claim partitions of the target that have due work, work them off, and return a one-line summary.

        Where nothing is due, open the target if that is.
        """
        # After a database outage the first use of a pooled connection fails. A wake-up that fails delays what is due,
        # so this call opens a new connection instead of leaving that to the next one.
        for _ in range(_MAX_TRIES):
            try:
                done = self._deliver(target)
            except DatabaseUnavailable as error:
                failure = error
            else:
                return done
        outbox_state.failed(failure)
        return "the outbox database is unavailable"

    def _deliver(self, target: TargetId) -> str:
        try:
            stored = self._held.registry.target(target)
        except UnknownTarget:
            return "the target was removed"
        self._held.redeliveries.record(stored.row_id)  # before a process that may have written too late claims more
        share = self._held.shares.of(stored)
        with processes.serving(stored.row_id, share) as may_serve:
            if not may_serve:  # its partitions stay free, and the drain sends another wake-up
                return "declined: the last free process is kept for other targets"
            try:
                return self._serve(stored, is_limited=share.limited)
            finally:
                if processes.has_postponed():
                    self._held.wakeups.request()

    def _serve(self, stored: StoredTarget, *, is_limited: bool) -> str:
        target = stored.target
        claimed, now = elapsed(), self._held.clock.measure()
        # While the others are idle and the target is quick, one worker that waits for its next events costs least.
        with_free = processes.any_idle() and self._held.pool.is_quick(stored)
        lease = self._held.leases.claim_due(stored.row_id, new_token(), now, with_free=with_free)
        if lease is None:
            return self._open(stored, now, is_limited=is_limited) if stored.opening_due_at <= now else "nothing due"
        if lease.leaves_work:  # the wake-up that is answered here may be the only one of a large request
            self._held.wakeups.request()
        try:
            term, work = self._held.settings.lease_ttl, self._held.settings.lease_max_work
            with LeaseGuard(self._held.leases, lease, claimed, term, self._held.clock, work) as guard:
                summary = self._work_off(lease, guard, stored, is_limited=is_limited)
        except (LeaseLost, LeaseExpired):
            arn = target.arn(self._held.settings.region)
            log.warning("%s lease lost: its current batch may be delivered again", arn, extra={"target": arn})
            if (seen := metrics.of(arn)) is not None:
                seen.lost_lease()
            return "lease lost"
        except BadSettings as error:
            open_breaker(
                self._held.database, lease.target_id, str(error), self._held.clock() + 60_000, probing=True,
                revision=stored.revision,
            )  # fmt: skip
            self._held.wakeups.request()  # so that the drain learns when to probe
            return f"bad settings: {error}"
        finally:
            self._held.leases.release(lease)
        if summary.counts["parked"] or summary.counts["retried"]:
            self._forget_old_waits(stored)
        self._wake_drain(lease)
        if summary.answered:
            with contextlib.suppress(*DatabaseUnavailable):  # a delivery that is settled must not be repeated for it
                if stored.opening != OPENED:
                    record_opening(self._held.database, stored.row_id, stored.revision, self._held.clock())
        return str(summary)

    def _open(self, stored: StoredTarget, now: int, *, is_limited: bool) -> str:
        """Open a target, as a delivery would, close it again, and record the result; return it as one line.

        It may take as long as a server that does not answer, so it is left for later where deliveries would wait for
        it: the drain sends another wake-up.
        """
        if stored.state not in _OPENABLE:
            return "nothing due"
        if not processes.take_turn():
            return "declined: no process is free to open the target"
        began = time.monotonic()
        try:
            if not begin_opening(self._held.database, stored, now):
                return "nothing due"
            try:
                target = self._held.pool.target(stored)
            except BadSettings as error:
                problem = str(error)
            else:
                target.is_limited = is_limited
                target.follow(stored.revision)
                problem = target.open()
                self._record_certificates(stored, target)
        finally:
            processes.end_turn(time.monotonic() - began)
        arn, reason = stored.target.arn(self._held.settings.region), printable(problem)
        if not record_opening(self._held.database, stored.row_id, stored.revision, self._held.clock(), problem):
            return "opened by another worker, or set again meanwhile"
        if not problem:
            log.info("%s opened in %.1f s", arn, time.monotonic() - began, extra={"target": arn})
        elif problem != stored.opening_reason:  # else it is the same as at the last try
            log.warning("%s cannot be opened: %s", arn, reason, extra={"target": arn, "reason": reason})
        return f"cannot be opened: {reason}" if problem else "opened"

    def _forget_old_waits(self, stored: StoredTarget) -> None:
        """Have retried events tried at once if the target was set or resumed while this lease delayed some of them."""
        with contextlib.suppress(UnknownTarget, *DatabaseUnavailable):
            if self._held.registry.target(stored.target).revision != stored.revision:
                try_all_now(self._held.database, stored.row_id)

    def _wake_drain(self, lease: Lease) -> None:
        """Have the drain run if there is work that it did not see while the lease was held."""
        with contextlib.suppress(*DatabaseUnavailable):  # beat's next drain finds it
            # A probe kept the target's other partitions from being claimed.
            if lease.probing or self._held.leases.has_work(lease):
                self._held.wakeups.request()

    def _work_off(self, lease: Lease, guard: LeaseGuard, stored: StoredTarget, *, is_limited: bool) -> LeaseSummary:
        target = self._held.pool.target(stored)
        target.is_limited = is_limited
        target.follow(stored.revision)
        request = partial(self._held.redeliveries.add, lease, target.name)
        observers = (self._held.attempts,)
        partitions = PartitionWorker(self._store, target, lease, self._held.clock, guard, observers, request)
        wait = EventWait(
            lambda: processes.any_idle() and not lease.probing and not processes.has_postponed(),
            lambda: self._is_unchanged(stored, target),
        )
        try:
            summary = partitions.work_off(lambda: not guard.has_time(), wait)
        except (LeaseLost, LeaseExpired):
            # Also for a log: it gets the newest event of each object once more, so that it ends with that one.
            self._held.redeliveries.add(lease, target.name, partitions.unsettled())
            raise
        except DatabaseUnavailable:
            if not guard.holds:  # what was sent cannot be settled, and another worker may have sent newer events
                self._held.redeliveries.add(lease, target.name, partitions.unsettled())
            raise
        self._record_certificates(stored, target)
        if summary.unavailable is not None:
            self._open_breaker(lease, stored, target.name, summary.unavailable)
        elif lease.probing and summary.answered:
            close_breaker(self._held.database, lease.target_id)
            log.info("%s is available again", target.name, extra={"target": target.name})
        return summary

    def _record_certificates(self, stored: StoredTarget, target: PooledTarget) -> None:
        if ends := target.certificates.unrecorded():
            with contextlib.suppress(*DatabaseUnavailable):  # they are still unrecorded then
                database, now = self._held.database, self._held.clock()
                record_certificates_of_target(database, stored.row_id, stored.revision, ends, now)
                target.certificates.recorded(ends)

    def _is_unchanged(self, stored: StoredTarget, target: PooledTarget) -> bool:
        try:
            current = self._held.registry.target(stored.target)
            same = (current.row_id, current.revision, current.state) == (stored.row_id, stored.revision, stored.state)
            return same and self._held.pool.target(stored) is target
        except (UnknownTarget, BadSettings):
            return False

    def _open_breaker(self, lease: Lease, stored: StoredTarget, arn: str, why: Unavailable) -> None:
        failures = 1 + count_failures(self._held.database, lease.target_id)
        wait = back_off(failures, self._rng, why.retry_after)
        resume_at = self._held.clock() + wait
        opened = open_breaker(
            self._held.database, lease.target_id, why.reason, resume_at,
            probing=lease.probing, pause=why.pause, revision=stored.revision,
        )  # fmt: skip
        self._held.wakeups.request()  # so that the drain learns when to probe
        if opened and (seen := metrics.of(arn)) is not None:
            seen.opened_breaker()
        # Of partitions that fail together one counts. The 1st, 2nd, 4th, 8th …: to be away for a day fills no log.
        if (opened or lease.probing) and (why.pause or failures.bit_count() == 1):
            members = {"target": arn, "outcome": "unavailable", "failures": failures}
            members |= {"next_probe_in": wait / 1000, "reason": why.reason}
            text = "%s unavailable (%d in a row), next probe in %.1f s: %s"
            log.warning(text, arn, failures, wait / 1000, printable(why.reason), extra=members)
