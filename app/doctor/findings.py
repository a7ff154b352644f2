"""The result of one check of `bucketwire doctor`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found about a subject. A `note` is information, not a problem of the service."""

    subject: str
    grade: str  # ok | note | problem
    text: str
