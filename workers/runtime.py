"""What a worker process works with: its database, its open targets, and the jobs that the tasks call."""

import os
from collections.abc import Callable, Sequence

from app.config.arn import TargetId
from app.config.settings import Settings
from app.outbox.delivery import heartbeats
from app.outbox.delivery.leases import Leases, Offer
from app.outbox.delivery.openings import Opening
from app.outbox.engine.clock import DatabaseClock
from app.outbox.engine.database import Database
from app.outbox.registry import open_registry
from app.wakeups import WakeUps
from workers.deliverer import Deliverer
from workers.delivery.redelivery_requests import RedeliveryRequests
from workers.drain import Drain
from workers.outbox_state import OutboxState
from workers.resources import Resources
from workers.target_opening import TargetOpener
from workers.target_pool import TargetPool
from workers.telemetry.attempt_recorder import AttemptRecorder
from workers.upkeep import Upkeep

_SHUTDOWN_PATIENCE = 10.0  # seconds for redelivery requests that the outbox database has not recorded yet


class Runtime:
    """The state of one worker process; `current()` creates it again after a fork."""

    def __init__(self, settings: Settings, pool: TargetPool | None = None) -> None:
        self.settings = settings
        self.database = database = Database(settings.database_url, patience=settings.database_timeout)
        self.clock = clock = DatabaseClock(database)
        self.leases = leases = Leases(database, int(settings.lease_ttl * 1000))
        self.registry = registry = open_registry(database, settings)
        self.pool = pool = pool or TargetPool(registry, settings)
        self.wakeups = wakeups = WakeUps(settings.broker_url)
        self.attempts = attempts = AttemptRecorder(database)
        self.redeliveries = redeliveries = RedeliveryRequests(database, settings.folder, wakeups.request)
        held = Resources(
            settings, database, clock, leases, registry, pool, TargetOpener(database, registry, settings, clock),
            wakeups, attempts, redeliveries, OutboxState(),
        )  # fmt: skip
        self._upkeep = Upkeep(held)
        self._drain, self._deliverer = Drain(held, self._upkeep), Deliverer(held)

    def drain(
        self,
        publish: Callable[[Offer], None],
        queued: Callable[[TargetId], int] = lambda _: 0,
        publish_opening: Callable[[Opening], None] | None = None,
    ) -> int:
        """See `Drain.run`."""
        return self._drain.run(publish, queued, publish_opening)

    def time_limit(self, target: TargetId) -> int:
        """See `Drain.time_limit`."""
        return self._drain.time_limit(target)

    def probe_queues(self, publish: Callable[[heartbeats.Queue], None]) -> int:
        """See `Drain.probe_queues`."""
        return self._drain.probe_queues(publish)

    def queue_alive(self, row_id: int) -> None:
        """See `Drain.queue_alive`."""
        self._drain.queue_alive(row_id)

    def deliver(self, target: TargetId, partitions: Sequence[int]) -> str:
        """See `Deliverer.deliver`."""
        return self._deliverer.deliver(target, partitions)

    def open_target(self, opening: Opening) -> str:
        """See `Deliverer.open_target`."""
        return self._deliverer.open_target(opening)

    def purge(self) -> int:
        """See `Upkeep.purge`."""
        return self._upkeep.purge()

    def sample(self) -> bool:
        """See `Upkeep.sample`."""
        return self._upkeep.sample()

    def close(self) -> None:
        """Close targets and database; allow some time to record pending redelivery requests."""
        self.redeliveries.close(_SHUTDOWN_PATIENCE)
        self.attempts.close()
        self.wakeups.close()
        self.pool.close()
        self.database.close()


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
