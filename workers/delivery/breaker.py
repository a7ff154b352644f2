"""Compute how long the circuit breaker of an unavailable target stays open before one partition probes the target.

closed ──unavailable──> open ──resume_at passed──> one partition probes ──delivered──> closed
                         ^                                   └──unavailable──> open, longer
"""

from random import Random

from workers.delivery import policy
from workers.delivery.retry import bounded_retry_after


def back_off(failures: int, rng: Random, retry_after: float | None = None) -> int:
    """Return the milliseconds until the next probe, after `failures` consecutive unavailable results (≥ 1)."""
    ceiling = min(policy.MAX_PROBE_MS, policy.FIRST_PROBE_MS << min(failures - 1, policy.MAX_DOUBLINGS))
    return max(rng.randint(ceiling // 2, ceiling), bounded_retry_after(retry_after))
