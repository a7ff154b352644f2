"""How slow this machine is at the start of a run, beside a quiet one: limits of waits are multiplied by that.

It is measured once, and the processes of pytest-xdist inherit it. Nothing is asserted about speed by it: a wait ends
when its condition holds, and only what never comes is noticed later.
"""

from __future__ import annotations

import os
import time
from functools import cache

_VARIABLE = "TEST_SLOWNESS"
_STEPS = 3_000_000
_QUIET_SECONDS = 0.16  # for so many steps, by Python 3.11 on a core of 2026
_MAX = 10.0


def measure() -> None:
    """Measure, unless the environment says it."""
    if _VARIABLE not in os.environ:
        began, total = time.monotonic(), 0
        for number in range(_STEPS):
            total += number * number % 7
        os.environ[_VARIABLE] = f"{(time.monotonic() - began) / _QUIET_SECONDS:.1f}"


def measure_again() -> None:
    """Measure now, for a run of hours."""
    os.environ.pop(_VARIABLE, None)
    slowness.cache_clear()
    measure()


def deadline(seconds: float) -> float:
    """When so many seconds are over, or in proportion more on a slow machine, by `time.monotonic()`."""
    return time.monotonic() + seconds * slowness()


@cache
def slowness() -> float:
    """1 on a quiet machine and before it was measured, more on a busy or slow one, 10 at most."""
    return min(_MAX, max(1.0, float(os.environ.get(_VARIABLE, "1"))))
