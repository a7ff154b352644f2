"""Know which targets can be delivered to now, which of their partitions are free, and how long a delivery may take."""

import math
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from app.config.arn import TargetId
from app.config.errors import BadSettings
from app.config.settings import Settings
from app.config.targets.base import TargetSettings
from app.outbox.declared import StoredTarget
from app.outbox.delivery.availability import ready_times
from app.outbox.delivery.leases import claimed_partitions
from app.outbox.engine.clock import DatabaseClock
from app.outbox.engine.database import Database, DatabaseUnavailable
from app.outbox.registry import Registry
from app.wakeups import Due, Ready

HARD_LIMIT_SECONDS = 300  # a task that takes longer is killed with its process, unless its target is allowed more time
_MAX_LATE_REQUESTS = 20  # that may each use a whole time limit after the time to work off a lease is over
_KNOWN_SECONDS = 1.0  # for which the state of a target is cached


def time_limit(settings: TargetSettings, work: float) -> int:
    """Return the seconds after which a task that delivers to this target certainly hangs, and its process is killed.

    A task starts requests for `work` seconds. After that it may still make one request each for parked events, replays
    and the log, and each of them may have to connect before and after.
    """
    longest = max(settings.timeout, getattr(settings, "read_timeout", 0.0))
    return max(HARD_LIMIT_SECONDS, math.ceil(work + _MAX_LATE_REQUESTS * longest))


@dataclass(frozen=True, slots=True)
class _Known:
    """A target that can be delivered to."""

    row_id: int
    target: TargetId
    arn: str
    time_limit: int
    has_rate_limit: bool


class ReadyTargets:
    """The targets that can be delivered to now. Use it from one thread at a time.

    It reads each target at most once a second while it is asked for it, and their free partitions each time.
    """

    def __init__(self, database: Database, registry: Registry, settings: Settings) -> None:
        self._database = database
        self._registry = registry
        self._settings = settings
        self._clock = DatabaseClock(database)
        self._known: dict[TargetId, _Known | None] = {}  # None: it cannot be delivered to, or does not exist
        # By row id, with the settings that they were made from.
        self._limits: dict[int, tuple[Mapping[str, str], tuple[int, bool]]] = {}
        self._next = 0.0  # when to forget the targets, by time.monotonic()

    def __call__(self, due: Due) -> Mapping[TargetId, Ready]:
        """Return those of the targets that are neither paused, disabled, broken nor unavailable, with what is free.

        The state is that of a second ago or less. Returns none while the database is unavailable.
        """
        try:
            if time.monotonic() >= self._next:
                self._known = {}
                self._next = time.monotonic() + _KNOWN_SECONDS
            if unknown := due.keys() - self._known.keys():
                stored = {stored.target: self._of(stored) for stored in self._registry.some(unknown)}
                self._known |= {target: stored.get(target) for target in unknown}
            return self._ready({known: due[target] for target in due if (known := self._known[target]) is not None})
        except DatabaseUnavailable:
            return {}

    def _ready(self, due: Mapping[_Known, Collection[int]]) -> Mapping[TargetId, Ready]:
        if not due:
            return {}
        now, limited = self._clock(), [known.row_id for known in due if known.has_rate_limit]
        with self._database.reading() as connection:
            times = ready_times(connection, limited, now) if limited else {}
            claimed = claimed_partitions(connection, [known.row_id for known in due], now)
        return {
            known.target: Ready(
                known.arn, known.time_limit, any((known.row_id, partition) not in claimed for partition in partitions)
            )
            if known.row_id not in times
            else Ready(known.arn, known.time_limit, is_free=False, wait=(times[known.row_id] - now) / 1000)
            for known, partitions in due.items()
        }

    def _of(self, stored: StoredTarget) -> _Known | None:
        limits = self._limits_of(stored) if stored.state == "running" else None
        return (
            None
            if limits is None
            else _Known(stored.row_id, stored.target, stored.target.arn(self._settings.region), *limits)
        )

    def _limits_of(self, stored: StoredTarget) -> tuple[int, bool] | None:
        """Return the target's time limit (s), and whether it has a rate limit; None if its settings are invalid."""
        values, limits = self._limits.get(stored.row_id, ({}, None))
        if limits is None or values != stored.values:
            try:
                settings = self._registry.settings(stored)
            except BadSettings:  # a worker that finds them so says what is wrong
                return None
            limits = time_limit(settings, self._settings.lease_max_work), settings.rate_limit > 0
            self._limits[stored.row_id] = stored.values, limits
        return limits
