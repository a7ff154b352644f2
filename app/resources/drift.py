"""The kinds of drift. A new one is a member here, and what finds it in `spark_jobs/jobs/comparison.py`."""

from collections.abc import Mapping
from enum import StrEnum


class DriftKind(StrEnum):
    """How a target's row and an object of its bucket differ. The value has at most 16 characters, `about` is for docs.

    The numbers of a run are JSON by kind in the outbox, so a kind needs no migration.
    """

    about: str

    def __new__(cls, value: str, about: str) -> "DriftKind":
        """Make a kind of its value and of what it means."""
        kind = str.__new__(cls, value)
        kind._value_ = value
        kind.about = about
        return kind

    MISSING = "missing", "the object exists and the rules would have sent its event, but there is no row"
    STALE = "stale", "the row has another content, another version, or an older write; `differs` names each"
    ORPHANED = "orphaned", "there is a row, but no such object, and the rules would have sent its removal"
    MALFORMED = "malformed", "the row's document is not an event, or the event of another object"


DRIFT_KINDS = tuple(kind.value for kind in DriftKind)


def drift_of(counts: Mapping[str, int]) -> int:
    """Return how many differences a run found, of all kinds."""
    return sum(counts[kind] for kind in DRIFT_KINDS)
