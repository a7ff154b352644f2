"""A position in the log: a run of a reconciliation has compared the objects of all events before it."""

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogPosition:
    """A position in the log of an epoch: every event after `seq` was received at `at` (ms) or later."""

    seq: int
    at: int
    epoch: str

    def to_text(self) -> str:
        """Return the position as the table of runs stores it."""
        return json.dumps({"seq": self.seq, "at": self.at, "epoch": self.epoch})

    @classmethod
    def from_text(cls, text: str) -> "LogPosition":
        """Return the position of a stored text."""
        return cls(**json.loads(text))
