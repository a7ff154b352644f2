"""Compute how long the circuit breaker of an unavailable target stays open before one partition probes the target.

closed ──unavailable──> open ──resume_at passed──> one partition probes ──delivered──> closed
                         ^                                   └──unavailable──> open, longer
"""

from random import Random

from workers.delivery.retry import bounded_retry_after

_FIRST = 200  # milliseconds
_LONGEST = 3_000  # so that delivery resumes within five seconds after the target is available again


def back_off(failures: int, rng: Random, retry_after: float | None = None) -> int:
    """Return the milliseconds until the next probe, after `failures` consecutive unavailable results (≥ 1)."""
    ceiling = min(_LONGEST, _FIRST << min(failures - 1, 10))
    return max(rng.randint(ceiling // 2, ceiling), bounded_retry_after(retry_after))
