"""Limits on what one reconciliation may change. Imports no Spark."""

from dataclasses import dataclass

from app.listings.limits import ALWAYS_ALLOWED, exceeds


@dataclass(frozen=True, slots=True)
class RepairLimits:
    """Keep a reconciliation that goes by a wrong listing from emptying a target, or filling it."""

    max_repairs: int = 100_000  # in one run
    max_removals: float = 10.0  # per cent of the target's rows
    always_allowed_removals: int = ALWAYS_ALLOWED  # rows, from the smallest target, unless none may
    max_creations: float = 100.0  # per cent of the target's rows
    always_allowed_creations: int = 10_000  # so many rows may be created in the smallest target, unless none may
    rate: float = 1000.0  # events per second

    def too_many_removals(self, removals: int, target_rows: int) -> bool:
        """Return whether so many of the target's rows must not be removed."""
        return exceeds(removals, target_rows, self.max_removals, self.always_allowed_removals)

    def too_many_creations(self, creations: int, target_rows: int) -> bool:
        """Return whether so many rows must not be created in the target."""
        return exceeds(creations, target_rows, self.max_creations, self.always_allowed_creations)
