"""How long a target that was unavailable is left alone before one partition probes it again.

closed ──unavailable──> open ──resume_at passed──> one partition probes ──delivered──> closed
                         ^                                   └──unavailable──> open, longer
"""

from random import Random

from workers.delivery.retry import bounded_retry_after

_FIRST = 200  # milliseconds
_LONGEST = 3_000  # so that a target is served again within five seconds of its return


def back_off(failures: int, rng: Random, retry_after: float | None = None) -> int:
    """Milliseconds until the next probe after `failures` times unavailable in a row (≥ 1)."""
    ceiling = min(_LONGEST, _FIRST << min(failures - 1, 10))
    return max(rng.randint(ceiling // 2, ceiling), bounded_retry_after(retry_after))
