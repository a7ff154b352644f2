"""Limits on what one reconciliation may change. Imports no Spark."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RepairLimits:
    """Keep a reconciliation that goes by a wrong listing from emptying a target."""

    max_repairs: int = 100_000  # in one run
    max_removals: float = 10.0  # per cent of the target's rows
    always_allowed_removals: int = 10  # so many rows may be removed from the smallest target
    rate: float = 1000.0  # events per second

    def exceeded(self, removals: int, target_rows: int) -> bool:
        """Return whether so many of the target's rows must not be removed."""
        return removals > max(self.always_allowed_removals, target_rows * self.max_removals / 100)
