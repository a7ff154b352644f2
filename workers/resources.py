"""What a worker process holds and its jobs share: the outbox database, what reads and writes it, and its targets."""

from app.broker import Broker
from app.config.settings import Settings
from app.outbox.delivery.leases import Leases
from app.outbox.engine.clock import DatabaseClock
from app.outbox.engine.database import Database
from app.outbox.registry import open_registry
from app.wakeups import WakeUps
from workers.delivery.pooled_target import TargetPool
from workers.delivery.redelivery_requests import RedeliveryRequests
from workers.heartbeat import broker_state
from workers.idle_processes import PoolShares
from workers.telemetry.attempt_recorder import AttemptRecorder

_SHUTDOWN_SECONDS = 10.0  # for redelivery requests that the outbox database has not recorded yet


class Resources:
    """Of one process; a forked one opens its own."""

    def __init__(self, settings: Settings, pool: TargetPool | None = None) -> None:
        self.settings = settings
        self.database = Database(settings.database_url, patience=settings.database_timeout)
        self.clock = DatabaseClock(self.database)
        self.leases = Leases(self.database, int(settings.lease_ttl * 1000))
        self.registry = open_registry(self.database, settings)
        self.pool = pool or TargetPool(self.registry, settings)
        self.shares = PoolShares(self.database, self.registry)
        self.broker = Broker(settings.broker_url, broker_state)
        self.wakeups = WakeUps(settings.broker_url, state=broker_state)
        self.attempts = AttemptRecorder(self.database)
        self.redeliveries = RedeliveryRequests(self.database, self.wakeups.request)

    def close(self) -> None:
        """Close targets and database; allow some time to record pending redelivery requests."""
        self.redeliveries.close(_SHUTDOWN_SECONDS)
        self.attempts.close()
        self.wakeups.close()
        self.broker.close()
        self.pool.close()
        self.database.close()
