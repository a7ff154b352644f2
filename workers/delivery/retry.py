"""Decide when to retry a failed event and when to give up, and how long the breaker of an unavailable target is open.

An event is retried with exponential back-off and full jitter. The circuit breaker opens for longer and longer, before
one partition probes the target:

closed ──unavailable──> open ──resume_at passed──> one partition probes ──delivered──> closed
                         ^                                   └──unavailable──> open, longer
"""

from dataclasses import dataclass
from random import Random

from workers.delivery import policy


@dataclass(frozen=True, slots=True)
class RetrySchedule:
    """A target's retry schedule; durations in milliseconds. `max_age` 0 = without end."""

    base: int = 1_000
    cap: int = 300_000
    max_attempts: int = 20
    max_age: int = 72 * 3_600_000

    def next_try(
        self,
        attempts: int,
        first_tried: int,
        last_tried: int,
        now: int,
        rng: Random,
        retry_after: float | None = None,
    ) -> int | None:
        """Return the time of the next try after the `attempts`-th failure, in milliseconds since 1970; None = give up.

        The wait is uniformly random in 0 … min(cap, base · 2^(attempts-1)), and never shorter than what the remote
        asked for (`retry_after`, seconds, up to 15 minutes). It is given up if `max_age` has passed since its first
        try, however long it had waited before that, but not at the first failure after an outage: `last_tried` is the
        time of the failure before, 0 for the first one. An outage, however long, must not cost an event an attempt.
        """
        if attempts >= self.max_attempts:
            return None
        wait = max(rng.randint(0, self._longest_wait(attempts)), bounded_retry_after(retry_after))
        due = now + wait
        if (
            self.max_age
            and due - first_tried > self.max_age
            and not self._was_away(attempts, last_tried, now, retry_after)
        ):
            return None
        return due

    def _longest_wait(self, attempts: int) -> int:
        return min(self.cap, self.base << min(max(attempts - 1, 0), 40))

    def _was_away(self, attempts: int, last_tried: int, now: int, retry_after: float | None) -> bool:
        """Return whether the target was unavailable or paused since the last failure: it was tried later than due."""
        asked = 0 if retry_after is None else policy.MAX_RETRY_AFTER_MS  # what it may have asked for then
        due = last_tried + max(self._longest_wait(attempts - 1), asked)
        return last_tried > 0 and due + policy.MAX_LATE_RETRY_MS < now


def bounded_retry_after(retry_after: float | None) -> int:
    """Return a remote's Retry-After (seconds) as milliseconds, within bounds."""
    return 0 if retry_after is None else max(0, min(int(retry_after * 1000), policy.MAX_RETRY_AFTER_MS))


def back_off(failures: int, rng: Random, retry_after: float | None = None) -> int:
    """Return the milliseconds until the next probe, after `failures` consecutive unavailable results (≥ 1)."""
    ceiling = min(policy.MAX_PROBE_MS, policy.FIRST_PROBE_MS << min(failures - 1, policy.MAX_DOUBLINGS))
    return max(rng.randint(ceiling // 2, ceiling), bounded_retry_after(retry_after))
