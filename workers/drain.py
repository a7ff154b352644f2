"""The drain: find partitions with due work, and publish a wake-up for each free one to its target's queue."""

import time
from collections.abc import Callable

from app import telemetry
from app.config.arn import TargetId
from app.config.target_settings import BadSettings
from app.outbox.delivery import heartbeats
from app.outbox.delivery.leases import Offer
from app.outbox.delivery.openings import Opening
from app.outbox.delivery.ready_targets import HARD_LIMIT, time_limit
from app.outbox.engine.database import DatabaseUnavailable
from app.outbox.markers import NEVER
from app.outbox.targets import UnknownTarget
from workers.resources import Resources
from workers.upkeep import Upkeep

_LIMITS_KNOWN = 5.0  # seconds for which a target's time limit is cached
_ALARMS_APART = 0.05  # seconds: retries that are due shortly after each other share a drain


class Drain:
    """Offers work to the targets' queues; in the same process it runs the upkeep."""

    def __init__(self, held: Resources, upkeep: Upkeep) -> None:
        self._held = held
        self._upkeep = upkeep
        self._tidied = 0.0
        self._limits: dict[TargetId, tuple[float, int]] = {}  # when each was looked up, and its value

    def run(
        self,
        publish: Callable[[Offer], None],
        queued: Callable[[TargetId], int] = lambda _: 0,
        publish_opening: Callable[[Opening], None] | None = None,
    ) -> int:
        """Offer every free partition with due work and publish the wake-ups; have targets opened that were set.

        `queued` returns how many wake-ups wait in a target's queue. Return how many were published, 0 while the
        database is unavailable. When a retry or a probe is due, the drain is woken again.
        """
        began = time.time_ns()
        try:
            offered = self._offer(publish, queued)
            if publish_opening is not None:
                self._held.opener.offer(publish_opening, queued)
        except DatabaseUnavailable as error:
            self._held.state.unavailable(error)
            return 0
        self._held.state.available()
        if offered and (tracing := telemetry.tracing()) is not None:  # a drain that finds nothing is not worth a span
            tracing.start("drain", attributes={"bucketwire.offers": offered}, began=began).end()
        return offered

    def time_limit(self, target: TargetId) -> int:
        """Return the longest time (seconds) that one delivery to this target may take; cached for some seconds."""
        known = self._limits.get(target)
        if known is None or time.monotonic() - known[0] > _LIMITS_KNOWN:
            try:
                settings = self._held.registry.settings(self._held.registry.target(target))
                limit = time_limit(settings, self._held.settings.lease_max_work)
            except (UnknownTarget, BadSettings):  # `deliver` handles these
                limit = HARD_LIMIT
            known = self._limits[target] = time.monotonic(), limit
        return known[1]

    def probe_queues(self, publish: Callable[[heartbeats.Queue], None]) -> int:
        """Send a heartbeat task to each target's queue, where one is due; return how many were sent."""
        try:
            due = heartbeats.queues_to_probe(self._held.database, self._held.clock())
        except DatabaseUnavailable as error:
            self._held.state.unavailable(error)
            return 0
        for queue in due:
            publish(queue)
        return len(due)

    def queue_alive(self, row_id: int) -> None:
        """Record that a worker serves the queue of the target with this row id."""
        try:
            heartbeats.answered(self._held.database, row_id, self._held.clock())
        except DatabaseUnavailable as error:
            self._held.state.unavailable(error)

    def _offer(self, publish: Callable[[Offer], None], queued: Callable[[TargetId], int]) -> int:
        now = self._held.clock()
        offers = self._held.leases.offer(now, queued)
        for offer in offers:
            publish(offer)
        if self._held.leases.next_at < NEVER:
            self._held.wakeups.request(max(_ALARMS_APART, (self._held.leases.next_at - self._held.clock()) / 1000))
        if time.monotonic() - self._tidied > 1:
            self._tidied = time.monotonic()
            if self._held.leases.advance_idle(now):
                self._held.wakeups.request()
            heartbeats.record(self._held.database, heartbeats.DRAIN, now)
        self._upkeep.continue_work()
        return len(offers)
