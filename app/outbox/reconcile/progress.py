"""How far a run is, as it is stored beside the run while its lease is renewed."""

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a running run is."""

    stage: str
    keys: int  # entries of the listing and rows of the target that have been read
    rate: int  # of them per second
    remaining: int | None  # seconds until all are compared; None if that is not known

    def to_text(self) -> str:
        """Return the text that is stored."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str | None) -> "Progress | None":
        """Return what a text says; None for none, and for one of a version of the code that writes something else."""
        try:
            stored = json.loads(text or "")
            return cls(stored["stage"], stored["keys"], stored["rate"], stored["remaining"])
        except (ValueError, KeyError, TypeError):
            return None
