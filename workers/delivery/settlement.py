"""Decide what becomes of each event of a batch: settled, parked or dead. Pure: uses no clock and no database.

A `BatchRecord` says what happened to each event; `settle` and the observers read it. The order of the log is kept per
object: once an event of an object is parked, every later one waits behind it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from random import Random

import orjson

from app.events.model import Event
from app.outbox.column_values import NEVER, clean_reason
from app.outbox.delivery.due_work import ObjectHash
from app.outbox.delivery.leases import ReplayPartition
from app.outbox.delivery.logged_events import LoggedEvent
from app.outbox.delivery.partition_reader import ParkedEvent
from app.outbox.delivery.settlement_store import ParkedRow, Settlement
from workers.delivery import retry
from workers.delivery.namespace_policy import Decision, SkipReason
from workers.delivery.outcomes import NOT_ATTEMPTED, Delivered, Failed, NotAttempted, Outcome, Rejected, Unavailable
from workers.delivery.retry import RetrySchedule
from workers.targets.base import LeaseExpired, TargetUnavailable

# The reason of an attempt whose worker did not get to settle it, and what it has in the history if it was the last one.
LOST_WORKER = "the worker process that sent the event was killed, or hung"
_LOST_LAST = f"{LOST_WORKER}, at its last attempt"


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

    `parked` is its row, if it was read from the parked events. `began` is set if its row counts this attempt already
    (`begin_attempt`). The settlement sets `state`, and `row` to the event's attempts and the time of the next one, if
    it is parked or became a dead letter.
    """

    logged: LoggedEvent
    decision: Decision
    parked: ParkedEvent | None = None
    outcome: Outcome = NOT_ATTEMPTED
    suspicion: Suspicion | None = None
    state: State = State.STAYS
    row: ParkedRow | None = None
    began: bool = False

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


def settle(batch: BatchRecord, schedule: RetrySchedule, now: int, rng: Random) -> Settlement:
    """Set the state of each event of the record, and return the changes that this makes to the outbox.

    An event of the log that is `Unavailable` or `NotAttempted` stays where it is, unless a later event of its partition
    got an answer: then it is parked without counting an attempt, so that the cursor can pass without sending the later
    one twice. It waits behind an earlier event of its object that this batch parked. If there is none, or that one
    became a dead letter, it is the object's head and due at once. A suspect is parked until it is due.
    """
    settlement = Settlement()
    for partition, seq in batch.read_to.items():
        settlement.partition(partition).position = seq
    deliveries = batch.deliveries
    batch.is_delivered = all(isinstance(delivery.outcome, Delivered) for delivery in deliveries)
    if batch.is_delivered and batch.read_to:
        for partition, count in Counter(delivery.logged.partition for delivery in deliveries).items():
            settlement.deliver_many(partition, count)
        for delivery in deliveries:
            delivery.state = State.DELIVERED
    else:
        by_partition: defaultdict[int, list[Delivery]] = defaultdict(list)
        for delivery in deliveries:
            by_partition[delivery.logged.partition].append(delivery)
        for partition, of_partition in by_partition.items():
            of_partition.sort(key=lambda delivery: delivery.logged.seq)
            end = _count_passed(of_partition) if batch.read_to else len(of_partition)
            progress = settlement.partition(partition)  # also where nothing changes: the lease guards the settlement
            if end < len(of_partition):
                progress.position = of_partition[end - 1].logged.seq if end else None
            blocked: set[ObjectHash] = set()
            for delivery in of_partition[:end]:
                _decide(delivery, blocked, schedule, now, rng)
                _write(settlement, delivery)
    if batch.replay is not None:
        progress = settlement.partition(batch.replay.partition)
        settlement.replay = (batch.replay, batch.replay.position if progress.position is None else progress.position)
        progress.position = None  # the log's own cursor stays where it is
    return settlement


def _count_passed(deliveries: Sequence[Delivery]) -> int:
    """Return how many events of a partition the cursor passes."""
    passed = 0
    for index, delivery in enumerate(deliveries, 1):
        if delivery.suspicion is not None or isinstance(delivery.outcome, Delivered | Failed | Rejected):
            passed = index
    while passed < len(deliveries) and not _is_unanswered(deliveries[passed]):
        passed += 1
    return passed


def _is_unanswered(delivery: Delivery) -> bool:
    is_sent = delivery.decision is SkipReason.NO_ROOM or not isinstance(delivery.decision, SkipReason)
    return is_sent and isinstance(delivery.outcome, Unavailable | NotAttempted)


def _decide(delivery: Delivery, blocked: set[ObjectHash], schedule: RetrySchedule, now: int, rng: Random) -> None:
    """Set the state of an event that its cursor passes, or that was parked, and the row that it gets.

    `blocked` are the objects of which this batch has parked an earlier event.
    """
    outcome, suspicion, waiting = delivery.outcome, delivery.suspicion, delivery.logged.object in blocked
    if isinstance(outcome, Delivered):
        delivery.state = State.DELIVERED
    elif delivery.decision is SkipReason.SUPERSEDED:
        delivery.state = State.SUPERSEDED
    elif delivery.decision is SkipReason.UNCHANGED:
        delivery.state = State.UNCHANGED
    elif waiting or delivery.decision is SkipReason.BEHIND_PARKED:
        _park(delivery, State.WAITING)
    elif suspicion is not None and suspicion.due is not None:
        _park(delivery, State.SUSPECTED, suspicion.due)
    elif suspicion is not None or isinstance(outcome, Failed | Rejected):
        _count_attempt(delivery, schedule, now, rng)
    else:
        _park(delivery, State.WAITING, due=0)
    if delivery.row is not None and delivery.state is not State.DEAD:
        blocked.add(delivery.logged.object)


def _park(delivery: Delivery, state: State, due: int = NEVER) -> None:
    """Park an event until `due`, without an attempt. One that is parked already and just waits stays as it is."""
    if state is State.WAITING and delivery.parked is not None and not delivery.began:
        return
    suspicion = delivery.suspicion
    refused_at = suspicion.refused_at if suspicion is not None and state is State.SUSPECTED else 0
    delivery.state = state
    delivery.row = replace(_known_row(delivery), not_before=due, refused_at=refused_at)


def _count_attempt(delivery: Delivery, schedule: RetrySchedule, now: int, rng: Random) -> None:
    """Count a failed attempt: the event is parked until its next one, or dead."""
    known, suspicion = _known_row(delivery), delivery.suspicion
    history = [*orjson.loads(known.history), [now, clean_reason(delivery.reason)]][-retry.MAX_HISTORY_ATTEMPTS :]
    row = replace(
        known,
        attempts=known.attempts + 1,
        first_tried=known.first_tried or now,
        last_tried=now,
        history=orjson.dumps(history).decode(),
        refused_at=0 if suspicion is None else suspicion.refused_at,
    )
    due = None
    if not isinstance(delivery.outcome, Rejected):
        due = schedule.next_try(row.attempts, row.first_tried, known.last_tried, now, rng, delivery.retry_after)
    delivery.state = State.DEAD if due is None else State.FAILED
    delivery.row = row if due is None else replace(row, not_before=due)


def begin_attempt(delivery: Delivery, schedule: RetrySchedule, now: int, rng: Random) -> Settlement:
    """Return what counts an attempt at a parked event before it is made, for one that may kill the worker.

    What becomes of the event afterwards takes this back, or counts it. An earlier attempt that lost its worker is known
    to have failed now.
    """
    delivery.outcome = Failed(LOST_WORKER)
    _count_attempt(delivery, schedule, now, rng)
    settlement, parked, row = Settlement(), delivery.parked, delivery.row
    settlement.partition(delivery.logged.partition)  # the lease guards the settlement
    if parked is not None and row is not None:
        history = row.history
        if delivery.state is State.DEAD:
            history = orjson.dumps([*orjson.loads(history)[:-1], [now, _LOST_LAST]]).decode()
        row = replace(row, history=history, refused_at=parked.refused_at)
        settlement.retry(row, failed=parked.attempts > 0 and has_lost_worker(parked))
    delivery.began, delivery.outcome, delivery.state, delivery.row = True, NOT_ATTEMPTED, State.STAYS, None
    return settlement


def give_up(delivery: Delivery) -> bool:
    """Have a parked event become a dead letter if its last attempt has lost its worker; return whether it has."""
    parked = delivery.parked
    if parked is None or not parked.attempts or not _ends_with(parked, _LOST_LAST):  # no attempts: it was replayed
        return False
    history = orjson.dumps(orjson.loads(parked.history)[:-1]).decode()
    delivery.parked = replace(parked, attempts=parked.attempts - 1, history=history)
    delivery.outcome = Rejected(LOST_WORKER)  # counts that attempt again, and is the end
    return True


def has_lost_worker(parked: ParkedEvent) -> bool:
    """Return whether the worker was lost that made the last attempt at the event."""
    return _ends_with(parked, LOST_WORKER) or _ends_with(parked, _LOST_LAST)


def _ends_with(parked: ParkedEvent, reason: str) -> bool:
    return parked.history.endswith(f'"{reason}"]]')


def _known_row(delivery: Delivery) -> ParkedRow:
    logged, parked = delivery.logged, delivery.parked
    place = (logged.partition, logged.seq, logged.key_hash, NEVER)
    if parked is None:
        return ParkedRow(*place)
    return ParkedRow(*place, parked.attempts, parked.first_tried, parked.last_tried, parked.history)


def _write(settlement: Settlement, delivery: Delivery) -> None:
    """Add to the settlement what the state of an event changes."""
    logged, parked, row, failed = delivery.logged, delivery.parked, delivery.row, delivery.state is State.FAILED
    match delivery.state:
        case State.DELIVERED | State.UNCHANGED:
            settlement.deliver(logged, parked)
        case State.SUPERSEDED:
            settlement.supersede(logged, parked)
        case State.DEAD if row is not None:
            settlement.bury(logged, row, clean_reason(delivery.reason), parked)
        case _ if row is not None and parked is None:
            settlement.park(row, failed=failed)
        case _ if row is not None:
            settlement.retry(row, failed=failed)
