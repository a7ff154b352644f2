"""Decide when to retry a failed event, and when to give up: exponential back-off with full jitter."""

from dataclasses import dataclass
from random import Random

_MAX_RETRY_AFTER = 15 * 60_000  # milliseconds; a longer Retry-After of a remote is reduced to this


@dataclass(frozen=True, slots=True)
class RetrySchedule:
    """A target's retry schedule; durations in milliseconds. `max_age` 0 = without end."""

    base: int = 1_000
    cap: int = 300_000
    max_attempts: int = 20
    max_age: int = 72 * 3_600_000

    def next_try(
        self, attempts: int, first_tried: int, now: int, rng: Random, retry_after: float | None = None
    ) -> int | None:
        """Return the time of the next try after the `attempts`-th failure, in milliseconds since 1970; None = give up.

        The wait is uniformly random in 0 … min(cap, base · 2^(attempts-1)), and never shorter than what the remote
        asked for (`retry_after`, seconds, up to 15 minutes). It is given up if `max_age` has passed since its first
        try, however long it had waited before that: after an outage, one failure must not cost an event.
        """
        if attempts >= self.max_attempts:
            return None
        ceiling = min(self.cap, self.base << min(attempts - 1, 40))
        wait = max(rng.randint(0, ceiling), bounded_retry_after(retry_after))
        due = now + wait
        if self.max_age and due - first_tried > self.max_age:
            return None
        return due


def bounded_retry_after(retry_after: float | None) -> int:
    """Return a remote's Retry-After (seconds) as milliseconds, within bounds."""
    return 0 if retry_after is None else max(0, min(int(retry_after * 1000), _MAX_RETRY_AFTER))
