"""Know which targets can be delivered to now, and how long a delivery to each may take."""

import math
import time
from collections.abc import Mapping

from app.config.arn import TargetId
from app.config.errors import BadSettings
from app.config.settings import Settings
from app.config.targets.base import TargetSettings
from app.outbox.engine.database import DatabaseUnavailable
from app.outbox.registry import Registry
from app.outbox.targets import StoredTarget
from app.wakeups import Ready

HARD_LIMIT = 300  # seconds; a task that takes longer is killed with its process, unless its target is allowed more time
_REQUESTS = 20  # the most requests that may each use a whole time limit after the time to work off a lease is over
_KNOWN_FOR = 1.0  # seconds


def time_limit(settings: TargetSettings, work: float) -> int:
    """Return the seconds after which a task that delivers to this target certainly hangs, and its process is killed.

    A task starts requests for `work` seconds. After that it may still make one request each for parked events, replays
    and the log, and each of them may have to connect before and after.
    """
    longest = max(settings.timeout, getattr(settings, "read_timeout", 0.0))
    return max(HARD_LIMIT, math.ceil(work + _REQUESTS * longest))


class ReadyTargets:
    """The targets that can be delivered to now. Use it from one thread at a time.

    It queries the database at most once a second, and only when it is asked.
    """

    def __init__(self, registry: Registry, settings: Settings) -> None:
        self._registry = registry
        self._settings = settings
        self._ready: Mapping[TargetId, Ready] = {}
        self._limits: dict[int, tuple[Mapping[str, str], int]] = {}  # by row id, with the settings it was made from
        self._next = 0.0  # when to query again, by time.monotonic()

    def __call__(self) -> Mapping[TargetId, Ready]:
        """Return the targets that are neither paused, disabled, broken nor unavailable, as of a second ago or less.

        Returns none while the database is unavailable.
        """
        if time.monotonic() >= self._next:
            try:
                self._ready = {
                    stored.target: ready for stored in self._registry.targets() if (ready := self._of(stored))
                }
            except DatabaseUnavailable:
                self._ready = {}
            self._next = time.monotonic() + _KNOWN_FOR
        return self._ready

    def _of(self, stored: StoredTarget) -> Ready | None:
        limit = self._limit(stored) if stored.state == "running" else None
        return None if limit is None else Ready(stored.target.arn(self._settings.region), limit)

    def _limit(self, stored: StoredTarget) -> int | None:
        values, limit = self._limits.get(stored.row_id, ({}, 0))
        if not limit or values != stored.values:
            try:
                limit = time_limit(self._registry.settings(stored), self._settings.lease_max_work)
            except BadSettings:  # a worker that finds them so says what is wrong
                return None
            self._limits[stored.row_id] = stored.values, limit
        return limit
