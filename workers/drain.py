"""The drain: find targets with due work, and see to it that enough wake-ups wait in their queues.

How many wait is what the broker says: the length of a target's queue is the only record of them. A worker that has
taken one and has not claimed anything yet is in no queue, so unchanged work is not announced again for a second.
"""

import time
from collections.abc import Callable, Sequence, Set

from app import telemetry
from app.broker import POLICY
from app.config.arn import TargetId
from app.config.target_settings import BadSettings
from app.outbox import heartbeats
from app.outbox.column_values import NEVER
from app.outbox.delivery.availability import targets_to_open
from app.outbox.delivery.due_work import DueTarget, DueWork
from app.outbox.delivery.ready_targets import HARD_LIMIT_SECONDS, time_limit
from app.outbox.engine.database import DatabaseUnavailable
from app.outbox.engine.reachability import outbox_state
from app.outbox.targets import UnknownTarget
from app.outbox.upkeep import DRAIN
from workers.resources import Resources
from workers.telemetry import metrics
from workers.upkeep import Upkeep

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
        the database is unavailable. When a retry or a probe is due, the drain is woken again.
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
            heartbeats.record(self._held.database, heartbeats.DRAIN, now)
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
