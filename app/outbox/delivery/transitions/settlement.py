"""The changes that a worker's batch makes to the delivery state of its events, as values."""

from dataclasses import dataclass, field
from itertools import chain

from app.outbox.delivery.leases import ReplayPartition
from app.outbox.delivery.logged_events import LogPosition
from app.outbox.delivery.parked import ObjectHash


@dataclass(slots=True)
class Progress:
    """The changes of one settlement to one partition's cursor.

    `replayed` is how many of its delivered, superseded and dead events were replayed, so that they hold no place in the
    target's queue.
    """

    position: int | None = None
    delivered: int = 0
    superseded: int = 0
    dead: int = 0
    replayed: int = 0
    failed: int = 0  # attempts that failed or were rejected

    @property
    def settled(self) -> int:
        """The number of events that it settles."""
        return self.delivered + self.superseded + self.dead


@dataclass(frozen=True, slots=True)
class ParkedRow:
    """A new or changed row of `parked` to write."""

    partition: int
    seq: int
    key_hash: int
    not_before: int
    attempts: int = 0
    first_tried: int = 0
    last_tried: int = 0
    history: str = "[]"
    refused_at: int = 0


@dataclass(frozen=True, slots=True)
class NewDeadLetter:
    """A dead letter to write."""

    partition: int
    seq: int
    event_id: str
    reason: str
    attempts: int
    first_tried: int
    last_tried: int
    history: str


@dataclass(slots=True)
class Settlement:
    """All changes of one batch, written atomically."""

    progress: dict[int, Progress] = field(default_factory=dict)
    replay: tuple[ReplayPartition, int] | None = None  # the replay of this batch, and its new position
    park: list[ParkedRow] = field(default_factory=list)
    repark: list[ParkedRow] = field(default_factory=list)
    unpark: list[LogPosition] = field(default_factory=list)
    deaths: list[NewDeadLetter] = field(default_factory=list)
    unblocked: set[ObjectHash] = field(default_factory=set)  # objects of `unpark`
    delivered_at: int = 0  # when the target confirmed an event of this batch (ms), 0 if it confirmed none

    @property
    def settled(self) -> int:
        """The number of events read after a cursor that it settles or parks."""
        return len(self.park) + sum(one.settled for one in self.progress.values())

    def partition(self, partition: int) -> Progress:
        """Return the partition's progress, created if there is none yet."""
        return self.progress.setdefault(partition, Progress())

    @property
    def only_advances(self) -> bool:
        """Whether it only advances cursors of the log."""
        return not (self.replay or self.park or self.repark or self.unpark or self.deaths or self.unblocked)

    @property
    def objects(self) -> set[ObjectHash]:
        """The objects whose parked events it adds, changes or removes."""
        return self.unblocked | {(park.partition, park.key_hash) for park in chain(self.park, self.repark)}
