"""The record of a batch: what happened to each event, decided once. The settlement and the observers read it."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from app.events.model import Event
from app.outbox.delivery.leases import ReplayPartition
from app.outbox.delivery.logged_events import LoggedEvent
from app.outbox.delivery.parked import ObjectHash
from app.outbox.delivery.partition_reader import ParkedEvent
from app.outbox.delivery.transitions.settlement import ParkedRow
from workers.delivery.namespace_policy import Decision
from workers.delivery.outcomes import NOT_ATTEMPTED, Delivered, Failed, NotAttempted, Outcome, Unavailable
from workers.targets.base import LeaseExpired, TargetUnavailable


class State(Enum):
    """What becomes of an event when its batch is settled."""

    DELIVERED = "delivered"
    UNCHANGED = "unchanged"  # not sent, because the target already holds what it would write; counts as delivered
    SUPERSEDED = "superseded"
    FAILED = "failed"  # parked until its next attempt
    DEAD = "dead"  # became a dead letter after its last attempt
    SUSPECTED = "suspected"  # refused by a target that seems to be up: parked, without an attempt
    WAITING = "waiting"  # parked without an attempt: behind an earlier event of its object, or due at once
    STAYS = "stays"  # where it was, in the log or parked


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A refusal as unavailable that concerns the event rather than the target. Times are milliseconds since 1970.

    The event is parked until `due`. None means that the target refused it before and has delivered others since: then
    this is a failed attempt.
    """

    refused_at: int
    due: int | None


@dataclass(slots=True)
class Delivery:
    """One event of a batch: the decision about it, the target's outcome if it was sent, and what becomes of it.

    `parked` is its row, if it was read from the parked events. The settlement sets `state`, and `row` to the event's
    attempts and the time of the next one, if it is parked or became a dead letter.
    """

    logged: LoggedEvent
    decision: Decision
    parked: ParkedEvent | None = None
    outcome: Outcome = NOT_ATTEMPTED
    suspicion: Suspicion | None = None
    state: State = State.STAYS
    row: ParkedRow | None = None

    @property
    def reason(self) -> str:
        """Why the target did not take the event, "" if it did or was not asked."""
        return "" if isinstance(self.outcome, Delivered | NotAttempted) else self.outcome.reason

    @property
    def retry_after(self) -> float | None:
        """The seconds that the target asks to wait before the event is sent again."""
        return self.outcome.retry_after if isinstance(self.outcome, Failed | Unavailable) else None


@dataclass(slots=True)
class BatchRecord:
    """The events that were read together, and what happened to them.

    `read_after` and `read_to` are the positions between which the log was read, by partition; parked events have none.
    `replay` is set if a replay reads the log. `began` is by `time.monotonic()`, `seconds` is the time that the target
    took, `trace` the context of the last call to it, and `settled_at` in milliseconds since 1970.
    """

    target_id: int
    deliveries: Sequence[Delivery]
    began: float
    read_after: Mapping[int, int] = field(default_factory=dict)
    read_to: Mapping[int, int] = field(default_factory=dict)
    replay: ReplayPartition | None = None
    seconds: float = 0.0
    trace: str = ""
    settled_at: int = 0
    is_delivered: bool = False  # all of it: nothing else was decided for any event

    @property
    def partitions(self) -> set[int]:
        """The partitions that it was read from."""
        return {*self.read_to, *(delivery.logged.partition for delivery in self.deliveries)}

    def failures(self) -> Iterator[tuple[Delivery, ParkedRow]]:
        """Yield the events with a failed attempt, each with its attempts and the time of the next one."""
        for delivery in () if self.is_delivered else self.deliveries:
            if delivery.row is not None and delivery.state in (State.FAILED, State.DEAD):
                yield delivery, delivery.row

    def delivered_times(self) -> list[int]:
        """Return when the delivered events were recorded (milliseconds since 1970); none of a replay's."""
        if self.replay is not None:
            return []
        return [one.logged.received_at for one in self.deliveries if one.state is State.DELIVERED]

    def counts(self) -> Counter[str]:
        """Return how many events became delivered, superseded, dead, parked, or failed another time (`retried`)."""
        if self.is_delivered:
            return Counter(delivered=len(self.deliveries))
        counts: Counter[str] = Counter()
        for delivery in self.deliveries:
            if word := _COUNTED.get(delivery.state):
                counts[word] += 1
            elif delivery.state is not State.STAYS:
                if delivery.parked is None:
                    counts["parked"] += 1
                # Without suspects: their refusals are no attempts, and during an outage each probe causes one.
                elif delivery.state is State.FAILED:
                    counts["retried"] += 1
        return counts


_COUNTED = {
    State.DELIVERED: "delivered",
    State.UNCHANGED: "delivered",
    State.SUPERSEDED: "superseded",
    State.DEAD: "dead",
}


def oldest_by_object(deliveries: Iterable[Delivery]) -> dict[ObjectHash, int]:
    """Return the objects of those events that may be, or have been, sent, each with the seq of the oldest."""
    oldest: dict[ObjectHash, int] = {}
    for delivery in deliveries:
        if isinstance(delivery.decision, Event):
            logged = delivery.logged
            oldest[logged.object] = min(logged.seq, oldest.get(logged.object, logged.seq))
    return oldest


@dataclass(slots=True)
class TargetCall:
    """One call to a target. `outcomes` is empty if the lease expired; `error` is what the adapter raised."""

    events: Sequence[Event]
    outcomes: Sequence[Outcome] = ()
    seconds: float = 0.0
    error: Exception | None = None
    trace: str = ""

    def late(self) -> list[int]:
        """Return the indexes of the events that may still arrive, after newer ones."""
        if self.error is not None and not isinstance(self.error, TargetUnavailable):
            return list(range(len(self.events)))  # it may have stopped anywhere
        outcomes = enumerate(self.outcomes)
        return [index for index, outcome in outcomes if isinstance(outcome, Unavailable) and outcome.may_arrive]

    def check(self) -> None:
        """Raise `LeaseExpired` if the lease has expired during the call."""
        if isinstance(self.error, LeaseExpired):
            raise self.error


class Observer:
    """Sees what a worker does with a target. Its methods must neither fail nor wait."""

    def call_begins(self, call: TargetCall) -> None:
        """See a call right before it is made; the observer may replace its events by ones with another trace."""

    def call_ended(self, call: TargetCall) -> None:
        """See a call that was made, or was not, because the target could not be opened."""

    def batch_settled(self, batch: BatchRecord) -> None:
        """See a batch that was settled."""

    def lease_ended(self) -> None:
        """See the end of a lease."""
