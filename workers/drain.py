"""The drain: see to it that enough wake-ups wait in the queues of targets with due work, and do the outbox's upkeep.

How many wait is what the broker says: the length of a target's queue is the only record of them. A worker that has
taken one and has not claimed anything yet is in no queue, so unchanged work is not announced again for a second. The
upkeep purges, samples and repairs, and records what comes of it.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager

from app import telemetry
from app.broker import POLICY, BrokerUnavailable, QueueRefused
from app.config.arn import SourceId, TargetId
from app.config.target_settings import BadSettings
from app.outbox import audit, processes, refusals, series, upkeep
from app.outbox.admin import event_states
from app.outbox.column_values import NEVER
from app.outbox.declared import UnknownTarget
from app.outbox.delivery import availability
from app.outbox.delivery.availability import targets_to_open
from app.outbox.delivery.due_work import DueTarget, DueWork
from app.outbox.delivery.future_times import bring_back_future_times
from app.outbox.delivery.ready_targets import HARD_LIMIT_SECONDS, time_limit
from app.outbox.delivery.transitions import HeadRepair
from app.outbox.engine.database import Database, DatabaseUnavailable
from app.outbox.engine.db_errors import outbox_state
from app.outbox.log.retention import PurgeProgress, purge
from app.outbox.notices import NoticeRecorder
from app.outbox.object_versions import UnusedProgress, drop_unused
from app.outbox.policies import UPKEEP
from app.outbox.reconcile.schedule import WaitingRun
from app.outbox.upkeep import DRAIN, NOTICES
from workers.resources import Resources
from workers.scheduled_jobs import listing_wake_ups as listings
from workers.scheduled_jobs import run_wake_ups
from workers.telemetry import metrics

log = logging.getLogger("bucketwire.worker")

_REPAIR_INTERVAL_SECONDS, _TIDY_INTERVAL_SECONDS = 60.0, 600.0
# Seconds. The drain runs in the same process and waits during a purge. If that has not removed everything, it continues
# after a pause, so that it keeps up with the log.
_MAX_PURGE_SECONDS, _PURGE_PAUSE_SECONDS = 0.3, 0.3


class Upkeep:
    """Keeps the outbox's tables small and its records in order."""

    def __init__(self, held: Resources) -> None:
        self._held = held
        self._next_tidying = 0.0  # by time.monotonic()
        self._unused_progress = UnusedProgress()
        self._purge_progress = PurgeProgress()
        self._audit_is_behind = False  # whether there are more old entries than a purge has removed
        self._next_purge = math.inf  # when a purge that was interrupted goes on, by time.monotonic()
        self._head_repair = HeadRepair(held.database)
        self._repaired = 0.0
        self._notice_recorder: NoticeRecorder | None = None
        self.records = TaskRecords(held.database, held.clock)

    def continue_work(self) -> None:
        """Go on with a purge that was interrupted, and repair parked objects and times, each when it is due."""
        if time.monotonic() >= self._next_purge:
            self.purge()
        elif self._next_purge < math.inf:
            self._held.wakeups.request(self._next_purge - time.monotonic())
        if time.monotonic() - self._repaired > _REPAIR_INTERVAL_SECONDS:
            self._repaired = time.monotonic()
            self._run_alone("heads", self._repair_heads)
            self._run_alone("times", self._bring_back_future_times)

    def purge(self) -> int:
        """Remove settled events older than the retention; return how many, 0 while the database is unavailable.

        Then it removes other rows that nobody needs, from time to time; what fails there does not stop the rest.
        It stops after a short time; then the next drains of this process go on with it.
        """
        self._next_purge = math.inf
        try:
            with self.records.running("purge"):
                older, progress = self._held.clock() - int(self._held.settings.retention * 1000), self._purge_progress
                removed = purge(self._held.database, older, seconds=_MAX_PURGE_SECONDS, progress=progress)
        except DatabaseUnavailable as error:
            outbox_state.failed(error)
            removed, is_behind = 0, False
        else:
            is_behind = self._purge_progress.is_behind
            if not is_behind:
                self.records.succeed("retention")
        self._tidy_tables()
        if is_behind or self._audit_is_behind or not self._unused_progress.ended:
            self._next_purge = time.monotonic() + _PURGE_PAUSE_SECONDS
            self._held.wakeups.request(_PURGE_PAUSE_SECONDS)
        return removed

    def sample(self) -> bool:
        """Store a sample of every target's counters, once in each step; return whether this call did.

        With `service_events`, also record what the sample shows as events about the service.
        """
        try:
            with self.records.running("samples"):
                is_stored = series.take_sample(self._held.database)
            if is_stored and self._held.settings.service_events:
                with self.records.running(NOTICES):
                    if self._notices().record():
                        self._held.wakeups.request()
        except DatabaseUnavailable as error:
            outbox_state.failed(error)
            return False
        return is_stored

    def publish_runs(self, publish: Callable[[WaitingRun], None], publish_listing: Callable[[SourceId], None]) -> int:
        """Register the runs that are due and publish their wake-ups, and those of the buckets that Spark has to list.

        Returns how many, 0 while the database is away.
        """
        try:
            with self.records.running("schedule"):
                runs = run_wake_ups.publish_due(self._held.database, publish)
                return runs + listings.publish_due(self._held.database, self._held.clock, publish_listing)
        except DatabaseUnavailable as error:
            outbox_state.failed(error)
            return 0

    def _notices(self) -> NoticeRecorder:
        if self._notice_recorder is None:
            interval, backlog = self._held.settings.service_events_interval, self._held.settings.service_events_backlog
            self._notice_recorder = NoticeRecorder(self._held.database, interval=int(interval * 1000), backlog=backlog)
        return self._notice_recorder

    def _tidy_tables(self) -> None:
        """Delete rows that nobody needs any more, each kind by itself; after a failure all are tried again soon."""
        if time.monotonic() >= self._next_tidying:
            self._next_tidying = time.monotonic() + _TIDY_INTERVAL_SECONDS
            self._unused_progress = UnusedProgress(ended=False)
            for name, job in (
                ("audit", self._purge_audit), ("attempts", self._forget_attempts), ("rates", self._forget_rates),
                ("workers", self._forget_processes), ("refusals", self._forget_refusals),
            ):  # fmt: skip
                self._tidy(name, job)
        elif self._audit_is_behind:
            self._tidy("audit", self._purge_audit)
        if not self._unused_progress.ended and not self._tidy("versions", self._drop_unused):
            self._unused_progress = UnusedProgress()

    def _tidy(self, name: str, job: Callable[[], object]) -> bool:
        if not (succeeded := self._run_alone(name, job)):
            self._next_tidying = min(self._next_tidying, time.monotonic() + _REPAIR_INTERVAL_SECONDS)
        return succeeded

    def _run_alone(self, name: str, job: Callable[[], object]) -> bool:
        """Run a task whose failure must not stop what follows; return whether it succeeded."""
        try:
            with self.records.running(name):
                job()
        except DatabaseUnavailable as error:
            outbox_state.failed(error)
            return False
        except Exception:
            log.exception("%s: unexpected", getattr(job, "__name__", job))
            return False
        return True

    def _purge_audit(self) -> None:
        self._audit_is_behind = False  # also if it fails, so that it is tried at the next interval
        ends = time.monotonic() + _MAX_PURGE_SECONDS
        older_than = self._held.clock() - int(self._held.settings.audit_retention * 1000)
        while audit.purge(self._held.database, older_than):
            if time.monotonic() > ends:
                self._audit_is_behind = True
                return

    def _forget_attempts(self) -> None:
        with self._held.database.writing() as connection:
            event_states.forget_attempts(connection)

    def _forget_rates(self) -> None:
        with self._held.database.writing() as connection:
            availability.forget_removed(connection)

    def _forget_processes(self) -> None:
        processes.forget_ended(self._held.database, self._held.clock())
        upkeep.forget_probes(self._held.database)

    def _forget_refusals(self) -> None:
        refusals.forget(self._held.database, self._held.clock())

    def _drop_unused(self) -> None:
        drop_unused(self._held.database, self._unused_progress, seconds=_MAX_PURGE_SECONDS)

    def _repair_heads(self) -> None:
        for target, objects in self._head_repair.run().items():
            arn = target.arn(self._held.settings.region)
            log.warning(
                "%s: repaired %d objects whose parked events had no head, or several; please report this as a defect",
                arn,
                objects,
                extra={"target": arn, "objects": objects},
            )

    def _bring_back_future_times(self) -> None:
        lease_ms = int(self._held.settings.lease_ttl * 1000)
        if rows := bring_back_future_times(self._held.database, lease_ms, self._held.clock()):
            log.warning(
                "%d leases, retries and other times were too far in the future and were brought back: the database's "
                "clock, or with SQLite this host's, was ahead",
                rows,
                extra={"rows": rows},
            )


_NO_DATABASE = "the outbox database was unavailable, or refused a statement"


class TaskRecords:
    """The records of one process; `clock` returns the database's time (ms)."""

    def __init__(self, database: Database, clock: Callable[[], int]) -> None:
        self._database = database
        self._clock = clock
        self._recorded: dict[str, float] = {}  # by task: when its last success was recorded, by time.monotonic()
        # By task: when it failed, by time.monotonic(), and why; of those that could not be recorded yet.
        self._unrecorded: dict[str, tuple[float, str]] = {}
        self._has_begun = False

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        """Record what comes of a task. Raises what the task raises."""
        try:
            yield
        except QueueRefused as error:
            self._fail(name, error)
            raise
        except BrokerUnavailable:
            raise  # which is a finding of its own
        except Exception as error:
            self._fail(name, error)
            raise
        self.succeed(name)

    def succeed(self, name: str) -> None:
        """Record that a task has succeeded, unless that is on record for the last seconds."""
        self._unrecorded.pop(name, None)
        if time.monotonic() - self._recorded.get(name, float("-inf")) >= UPKEEP.record_seconds:
            self._try(lambda: self._record_success(name))
        if self._unrecorded:
            self._try(self._record_failures)

    def _fail(self, name: str, error: Exception) -> None:
        self._recorded.pop(name, None)
        problem = f"unexpected {type(error).__name__}"
        if isinstance(error, QueueRefused):
            problem = str(error)
        elif isinstance(error, DatabaseUnavailable):
            problem = _NO_DATABASE
        self._unrecorded[name] = time.monotonic(), f"{problem}; the worker's log says more"
        if not isinstance(error, DatabaseUnavailable):  # else that would fail, too, after another wait
            self._try(self._record_failures)

    def _record_success(self, name: str) -> None:
        upkeep.record_success(self._database, name, self._clock())
        self._recorded[name] = time.monotonic()

    def _record_failures(self) -> None:
        """Record the failures that are not on record, with their times; those that are left are recorded later."""
        for name, (failed_at, problem) in list(self._unrecorded.items()):
            at = self._clock() - int((time.monotonic() - failed_at) * 1000)
            upkeep.record_failure(self._database, name, at, problem)
            del self._unrecorded[name]

    def _try(self, record: Callable[[], None]) -> None:
        """Record something within a bounded time; that the database does not take it is logged, and fails nothing."""
        try:
            with self._database.answering_within(UPKEEP.statement_seconds):
                self._begin()
                record()
        except DatabaseUnavailable as error:
            outbox_state.failed(error)

    def _begin(self) -> None:
        if not self._has_begun:
            upkeep.begin_all(self._database, self._clock())
            self._has_begun = True


_LIMITS_KNOWN_SECONDS = 5.0  # for which a target's time limit is cached
_ALARM_INTERVAL_SECONDS = 0.05  # at least: retries that are due shortly after each other share a drain
_REPEAT_MS = 1_000  # until work is announced again with which no worker has got on


class Announced:
    """Remembers which work this process has announced lately."""

    def __init__(self) -> None:
        self._announced: dict[int, tuple[int, frozenset[object]]] = {}  # when (ms) and which work, by target
        self.next_at = NEVER  # when some of it may have to be announced again (ms)

    def begin(self, due: Sequence[DueTarget]) -> None:
        """Forget targets that are not due any more."""
        still_due = self._announced.keys() & {target.row_id for target in due}
        self._announced = {row_id: self._announced[row_id] for row_id in still_due}
        self.next_at = NEVER

    def is_new(self, due: DueTarget, now: int) -> bool:
        """Return whether some of this work has not been announced within a second, and count it as announced."""
        at, states = self._announced.get(due.row_id, (NEVER, frozenset()))
        work = frozenset(partition.state for partition in due.partitions)
        is_new = due.limited or not (work <= states and at <= now < at + _REPEAT_MS)
        if is_new:
            at = now
            self._announced[due.row_id] = at, work
        self.next_at = min(self.next_at, at + _REPEAT_MS)
        return is_new


class Drain:
    """Wakes workers; in the same process it runs the upkeep."""

    def __init__(self, held: Resources, upkeep: Upkeep) -> None:
        self._held = held
        self._upkeep = upkeep
        self._due_work = DueWork(held.database)
        self._announced = Announced()
        self._tidied = 0.0
        self._opened_last = 0  # the row id of the last target for whose opening a worker was woken
        self._limits: dict[TargetId, tuple[float, int]] = {}  # when each was looked up, and its value

    def run(self, publish: Callable[[TargetId], None], queued: Callable[[TargetId], int] = lambda _: 0) -> int:
        """Publish the wake-ups that are missing where work is due, or a target is to be opened.

        `queued` returns how many messages wait in a target's queue. Return how many wake-ups were published, 0 while
        the database is unavailable. The drain is woken again when a retry or a probe is due or a lease expires, and a
        second after work was announced, as its wake-ups may have been lost.

        Drains that run at the same moment may each publish all that are missing. A worker that is woken in vain claims
        nothing.
        """
        began = time.time_ns()
        try:
            with metrics.counted_drain(), self._upkeep.records.running(DRAIN):
                published = self._wake_workers(publish, queued)
        except DatabaseUnavailable as error:
            outbox_state.failed(error)
            return 0
        if published and (tracing := telemetry.tracing()) is not None:  # a drain that finds nothing is not worth a span
            tracing.start("drain", attributes={"bucketwire.wake_ups": published}, began=began).end()
        return published

    def time_limit(self, target: TargetId) -> int:
        """Return the longest time (seconds) that one delivery to this target may take; cached for some seconds."""
        known = self._limits.get(target)
        if known is None or time.monotonic() - known[0] > _LIMITS_KNOWN_SECONDS:
            try:
                settings = self._held.registry.settings(self._held.registry.target(target))
                limit = time_limit(settings, self._held.settings.lease_max_work)
            except (UnknownTarget, BadSettings):  # `deliver` handles these
                limit = HARD_LIMIT_SECONDS
            known = self._limits[target] = time.monotonic(), limit
        return known[1]

    def _wake_workers(self, publish: Callable[[TargetId], None], queued: Callable[[TargetId], int]) -> int:
        now, published = self._held.clock(), 0
        due = self._due_work.find(now)
        self._announced.begin(due)
        for target in due:
            if self._announced.is_new(target, now):
                missing = max(0, min(target.wake_ups, POLICY.max_target_messages) - queued(target.target))
                for _ in range(missing):
                    publish(target.target)
                published += missing
        next_at = min(self._due_work.next_at, self._announced.next_at)
        if next_at < NEVER:
            self._held.wakeups.request(max(_ALARM_INTERVAL_SECONDS, (next_at - self._held.clock()) / 1000))
        if time.monotonic() - self._tidied > 1:
            self._tidied = time.monotonic()
            self._held.leases.check_epoch()
            upkeep.record_heartbeat(self._held.database, upkeep.DRAIN, now)
            published += self._wake_openers({target.target for target in due}, publish, queued)
        self._upkeep.continue_work()
        return published

    def _wake_openers(
        self, due: Set[TargetId], publish: Callable[[TargetId], None], queued: Callable[[TargetId], int]
    ) -> int:
        """Wake a worker for some targets to open for which no message waits and no event is `due`; return how many."""
        with self._held.database.reading() as connection:
            chosen = targets_to_open(connection, self._held.clock(), self._opened_last)
        self._opened_last = chosen[-1][0] if chosen else 0
        woken = [target for _, target in chosen if target not in due and not queued(target)]
        for target in woken:
            publish(target)
        return len(woken)
