"""What a worker process holds and its jobs share: the outbox database, what reads and writes it, and open targets."""

from dataclasses import dataclass

from app.config.settings import Settings
from app.outbox.delivery.leases import Leases
from app.outbox.engine.clock import DatabaseClock
from app.outbox.engine.database import Database
from app.outbox.registry import Registry
from app.wakeups import WakeUps
from workers.delivery.redelivery_requests import RedeliveryRequests
from workers.outbox_state import OutboxState
from workers.target_opening import TargetOpener
from workers.target_pool import TargetPool
from workers.telemetry.attempt_recorder import AttemptRecorder


@dataclass(frozen=True)
class Resources:
    """Of one process; a forked one opens its own."""

    settings: Settings
    database: Database
    clock: DatabaseClock
    leases: Leases
    registry: Registry
    pool: TargetPool
    opener: TargetOpener
    wakeups: WakeUps
    attempts: AttemptRecorder
    redeliveries: RedeliveryRequests
    state: OutboxState
