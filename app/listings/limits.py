"""Limits on what may be changed by one listing, which may be wrong, and the error of one that nothing may go by.

Imports no Spark.
"""

from dataclasses import dataclass

from app.events.minio_json import timestamp
from app.events.own_events import CLOCK_SKEW
from app.listings.differences import Counts
from app.quantities import count_noun

ALWAYS_ALLOWED = 10  # so many objects may be removed at the smallest target or bucket, unless none may


class BadListing(Exception):
    """The listing is none, is not of the bucket, or may lack a part of it; the message says why."""


def exceeds(number: int, total: int, percent: float, always: int) -> bool:
    """Return whether a number is more than some per cent of a total and more than `always`; 0 per cent allows none."""
    return number > (max(always, total * percent / 100) if percent else 0)


@dataclass(frozen=True, slots=True)
class RefusedRemovals:
    """How many objects a listing lacks that nobody has approved, and the reason for a refusal."""

    lacking: int
    reason: str


def refused_removals(
    counts: Counts, entries: int, *, percent: float, approved: int, source: str
) -> RefusedRemovals | None:
    """Return why nothing of a listing with so many entries is recorded: it lacks too many objects; None if it is.

    So many removals were `approved` by resuming the source.
    """
    # What only the log knew counts, too: the listing of another store lacks all of that.
    is_empty, lacking, there = not entries and counts.known > 0, counts.removed, counts.known + counts.unseen
    if not is_empty and not exceeds(lacking, there, percent, ALWAYS_ALLOWED):
        return None
    lacking = counts.known if is_empty else lacking
    if approved and lacking <= approved + ALWAYS_ALLOWED:
        return None
    found = "the listing is empty" if is_empty else f"the listing lacks {count_noun(lacking, 'object')}"
    reason = (
        f"{found} of {there:,} that are known, more than max_removals={percent} allows;"
        f" nothing is recorded; if the objects were removed, `bucketwire source resume {source}` approves it"
    )
    return RefusedRemovals(lacking, reason)


def check_age(store_time: int, known: int, passed: int) -> None:
    """Raise `BadListing` if a store answers what was the state before that which is known: from a cache, say.

    Both times are the store's own (ms, 0 for unknown). Its clock has to have gone on since, half as fast at least as
    the time (ms) that has `passed` for the database, so that one that was set back goes on again.
    """
    if store_time and known and store_time < known + max(0, passed) // 2 - CLOCK_SKEW:
        raise BadListing(
            f"its answer is of {timestamp(store_time)}, before the listing that is known, of"
            f" {timestamp(known)}: a cache has answered, or the store's clock was set back"
        )


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
