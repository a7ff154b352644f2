"""The history of a versioned key."""

from __future__ import annotations

from collections.abc import Iterable

from app.events.order import (
    Entry,
    Fold,
    Holding,
)


def current(history: Iterable[Entry]) -> Holding:
    """What the fold of a whole history comes to."""
    fold = Fold()
    fold.add(sorted(history, key=lambda entry: entry.seq))
    return fold.key.holding(fold.top())
