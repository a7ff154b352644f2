"""What a body of events may hold, counted down while it is read."""

from dataclasses import dataclass

from app.events.errors import BadEvents
from app.events.stored_size import UNLIMITED

# JSON costs memory by its values and not by its bytes: 64 MiB of `[[],[],…` take 3 GB once they are read. A record of
# MinIO has 10 objects and 35 commas, each envelope around it as many again.
_CONTAINERS, _VALUES = 64, 256  # for each record that a body may hold
_LEAST_CONTAINERS, _LEAST_VALUES = 100_000, 400_000  # whatever the limit of records: one record may hold much


@dataclass(frozen=True, slots=True)
class Limits:
    """What a body may hold at most: `records` in all, and objects and arrays in each other within one record.

    `event_bytes` is the most that an event may have where it is stored (`app.events.stored_size`). `refusals` is how
    many of the records that are left out are described; the others are only counted.
    """

    records: int = 10_000
    nesting: int = 32
    event_bytes: int = UNLIMITED
    refusals: int = 1000

    @property
    def containers(self) -> int:
        """The most JSON objects and arrays in a body and in what is wrapped in it; brackets within texts count."""
        return max(_LEAST_CONTAINERS, _CONTAINERS * self.records)

    @property
    def values(self) -> int:
        """The most JSON values, by the commas after them."""
        return max(_LEAST_VALUES, _VALUES * self.records)


class Allowance:
    """What is left of a body's limits. Each method raises `BadEvents` (413) where that is not enough."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._records = limits.records
        self._containers = limits.containers
        self._values = limits.values

    def check_text(self, text: bytes) -> None:
        """Count what a JSON text may hold, before it is read: afterwards it is in memory already."""
        # No text has more of anything than bytes: most bodies need not be looked through.
        if len(text) > self._containers:
            self._containers -= text.count(b"{") + text.count(b"[")
            if self._containers < 0:
                raise _too_much(f"{self._limits.containers} JSON objects and arrays")
        if len(text) > self._values:
            self._values -= text.count(b",")
            if self._values < 0:
                raise _too_much(f"{self._limits.values} JSON values")

    def check_records(self, count: int) -> None:
        """Refuse an array of more things than records are left, before any of them is looked at."""
        if count > self._records:
            raise _too_many(self._limits.records)

    def take_record(self) -> None:
        """Count one record."""
        self._records -= 1
        if self._records < 0:
            raise _too_many(self._limits.records)


def _too_many(most: int) -> BadEvents:
    return BadEvents(f"The body holds more than {most} records, the most for one request: send it in parts.", 413)


def _too_much(most: str) -> BadEvents:
    return BadEvents(
        f"The body holds more than {most}, the most for one request: send it in parts, or raise "
        "BUCKETWIRE_RECORD_LIMIT, to which this limit is in proportion.",
        413,
    )
