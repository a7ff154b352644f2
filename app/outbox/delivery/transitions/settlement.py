"""The changes that a worker's batch makes to the delivery state of its events, as values."""

from dataclasses import dataclass, field
from itertools import chain

from app.outbox.delivery.leases import ReplayPartition
from app.outbox.delivery.logged_events import LoggedEvent
from app.outbox.delivery.parked import ObjectHash
from app.outbox.delivery.partition_reader import ParkedEvent


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
    """The changes of one batch, which are written together. Its transitions keep the counters balanced.

    `waiting` is the event as it was parked, None for one that was read after a cursor.
    """

    progress: dict[int, Progress] = field(default_factory=dict)
    replay: tuple[ReplayPartition, int] | None = None  # the replay of this batch, and its new position
    parked: list[ParkedRow] = field(default_factory=list)
    retried: list[ParkedRow] = field(default_factory=list)
    buried: list[NewDeadLetter] = field(default_factory=list)
    removed: list[ParkedEvent] = field(default_factory=list)  # that are parked no more
    delivered_at: int = 0  # when the target confirmed an event of this batch (ms), 0 if it confirmed none

    def deliver(self, event: LoggedEvent, waiting: ParkedEvent | None = None) -> None:
        """Count an event as delivered: the target has it, or what it would have written."""
        self.partition(event.partition).delivered += 1
        self._remove(waiting)

    def deliver_many(self, partition: int, count: int) -> None:
        """Count that many events, read after the cursor, as delivered."""
        self.partition(partition).delivered += count

    def supersede(self, event: LoggedEvent, waiting: ParkedEvent | None = None) -> None:
        """Count an event as superseded: it was not sent, because a newer one of its object is known."""
        self.partition(event.partition).superseded += 1
        self._remove(waiting)

    def park(self, row: ParkedRow, *, failed: bool = False) -> None:
        """Park an event that was read after a cursor; with `failed` an attempt at it has failed."""
        self.partition(row.partition).failed += failed
        self.parked.append(row)

    def retry(self, row: ParkedRow, *, failed: bool = False) -> None:
        """Have an event that is parked wait for its next attempt; with `failed` the last one has failed."""
        self.partition(row.partition).failed += failed
        self.retried.append(row)

    def bury(self, event: LoggedEvent, last: ParkedRow, reason: str, waiting: ParkedEvent | None = None) -> None:
        """Make an event a dead letter, after a failed attempt; `last` has all its attempts."""
        progress = self.partition(event.partition)
        progress.dead += 1
        progress.failed += 1
        tried = (last.attempts, last.first_tried, last.last_tried, last.history)
        self.buried.append(NewDeadLetter(event.partition, event.seq, event.event.id, reason, *tried))
        self._remove(waiting)

    def _remove(self, waiting: ParkedEvent | None) -> None:
        if waiting is not None:
            self.partition(waiting.logged.partition).replayed += waiting.replayed
            self.removed.append(waiting)

    def partition(self, partition: int) -> Progress:
        """Return the partition's progress, created if there is none yet."""
        return self.progress.setdefault(partition, Progress())

    @property
    def passed(self) -> int:
        """The number of events read after a cursor that it settles or parks."""
        return len(self.parked) + sum(progress.settled for progress in self.progress.values())

    @property
    def only_advances(self) -> bool:
        """Whether it only advances cursors of the log."""
        return not (self.replay or self.parked or self.retried or self.removed or self.buried)

    @property
    def only_fails(self) -> bool:
        """Whether attempts have failed, and the target confirmed no event."""
        return not self.delivered_at and any(one.failed for one in self.progress.values())

    @property
    def objects(self) -> set[ObjectHash]:
        """The objects whose parked events it adds, changes or removes."""
        changed = {(row.partition, row.key_hash) for row in chain(self.parked, self.retried)}
        return changed | {waiting.logged.object for waiting in self.removed}
