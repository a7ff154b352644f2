"""Records of batches that a test makes up, settled as a worker settles them."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from app.outbox.delivery.logged_events import LoggedEvent
from app.outbox.delivery.partition_reader import ParkedEvent
from app.outbox.delivery.settlement_store import Settlement
from workers.delivery.namespace_policy import SkipReason
from workers.delivery.outcomes import Outcome, Unavailable
from workers.delivery.retry import RetrySchedule
from workers.delivery.settlement import BatchRecord, Delivery, Suspicion, settle

NOW = 1_795_000_000_000
Result = Outcome | SkipReason | tuple[Unavailable, Suspicion]


def delivery(read: LoggedEvent | ParkedEvent, result: Result) -> Delivery:
    """An event with what was decided of it, or how the target answered."""
    logged, parked = (read.logged, read) if isinstance(read, ParkedEvent) else (read, None)
    if isinstance(result, SkipReason):
        return Delivery(logged, result, parked)
    outcome, suspicion = result if isinstance(result, tuple) else (result, None)
    return Delivery(logged, logged.event, parked, outcome, suspicion)


def settled(
    read: Sequence[LoggedEvent] | Sequence[ParkedEvent],
    results: Sequence[Result],
    schedule: RetrySchedule,
    read_to: Mapping[int, int] | None = None,
    **members: Any,
) -> tuple[BatchRecord, Settlement]:
    """The record of these events, settled at `NOW`; events of the log are those of partitions read so far."""
    deliveries = list(map(delivery, read, results))
    assert len(read) == len(results)
    batch = BatchRecord(7, deliveries, 0.0, read_to=read_to or {}, settled_at=NOW, **members)
    return batch, settle(batch, schedule, NOW, Random(7))
