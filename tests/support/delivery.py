"""A drain and its workers in this process, one after the other: real partitions, leases and breakers, without a
broker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from app.config.arn import TargetId
from app.config.settings import Settings
from app.outbox.declared import StoredTarget
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from tests.services import until
from tests.support.builders import SECRET_KEY, add_target, event
from tests.support.scripted_target import Courier, ScriptedTarget
from workers.delivery.namespace_policy import Policy
from workers.delivery.outcomes import Failed
from workers.delivery.pooled_target import BatchSizer, PooledTarget
from workers.delivery.retry import RetrySchedule
from workers.runtime import Runtime
from workers.targets.base import Target


class Delivery:
    """Drains, and delivers what the drain sends wake-ups for, over one outbox."""

    def __init__(self, database_url: str, folder: Path, **settings: Any) -> None:
        variables = {
            "BUCKETWIRE_DATA_DIR": str(folder),
            "BUCKETWIRE_DATABASE_URL": database_url,
            "BUCKETWIRE_SECRET_KEYS": SECRET_KEY,
        }
        variables |= {f"BUCKETWIRE_{name.upper()}": str(value) for name, value in settings.items()}
        self.context = Runtime(Settings.from_environ(variables))

    def serve(self, target: Target, schedule: RetrySchedule, *, batch: int = 16, rate: int = 0) -> None:
        """Deliver to this target object, whatever the settings of a target say."""
        pooled: dict[int, PooledTarget] = {}

        def of(stored: StoredTarget) -> PooledTarget:
            name = stored.target.arn("")
            made = PooledTarget(name, target, Policy.LOG, schedule, 1, BatchSizer(batch, batch), rate=rate)
            return pooled.setdefault(stored.row_id, made)

        self.context.pool.target = of  # type: ignore[method-assign]

    def turn(self) -> list[str]:
        """Drain once and follow each wake-up; what each came to."""
        wake_ups: list[TargetId] = []
        self.context.drain.run(wake_ups.append)
        return [self.context.deliverer.deliver(target) for target in wake_ups]

    def until(self, condition: Callable[[], object], timeout: float = 60, what: str = "") -> None:
        """Turn after turn, until the condition holds."""

        def turned() -> object:
            self.turn()
            return condition()

        until(turned, timeout, what=what)


@contextlib.contextmanager
def delivery(database_url: str, folder: Path, **settings: Any) -> Iterator[Delivery]:
    """A delivery over this outbox, closed with the block."""
    made = Delivery(database_url, folder, **settings)
    try:
        yield made
    finally:
        made.context.close()


def failing(database: Database, keys: int, events: int = 2, name: str = "audit") -> Courier:
    """A target at which the first event of each key has failed; the others wait behind it."""
    target = add_target(database, name)
    courier = Courier(database, target, ScriptedTarget(lambda _: Failed("500 broken", retry_after=60)))
    Log(database).append([[event(f"k{number}") for number in range(keys) for _ in range(events)]])
    courier.run()
    return courier
