"""What `make image-test` prints: a line for each thing that holds, and the first that does not."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def check(holds: object, text: str) -> None:
    """Print what holds; end where it does not."""
    if not holds:
        sys.exit(f"WRONG: {text}")
    say(f"ok  {text}")


def until(condition: Callable[[], object], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"WRONG: not within {seconds:g} s: {what}")
        time.sleep(0.5)
