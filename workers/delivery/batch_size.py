"""The size of a batch: how many events a worker passes to a target in one call."""

from dataclasses import dataclass

from workers.delivery import policy


@dataclass(slots=True)
class BatchSizer:
    """How many events to pass to a target in one call: as many as it has proved to take in about a second.

    So a target that hangs holds up a partition with few events, and a fast one gets full batches after a few calls.
    """

    limit: int
    size: int = policy.INITIAL_BATCH_EVENTS  # or the limit, if that is less

    def __post_init__(self) -> None:
        self.size = min(self.size, self.limit)

    def took(self, events: int, seconds: float) -> None:
        """Adjust the size after a batch of so many events that took the target so many seconds."""
        if seconds > policy.SLOW_CALL_SECONDS:
            self.size = max(1, self.size // policy.BATCH_GROWTH)
        elif seconds < policy.FAST_CALL_SECONDS and events >= self.size:
            self.size = min(self.limit, self.size * policy.BATCH_GROWTH)
