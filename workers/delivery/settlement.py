"""Decide what becomes of each event of a batch: settled, parked or dead. Pure: uses no clock and no database.

It keeps the order of the log per object: once an event of an object is parked, every later one waits behind it.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import orjson

from app.outbox.column_values import NEVER, clean_reason
from app.outbox.delivery.parked import ObjectHash
from app.outbox.delivery.transitions.settlement import ParkedRow, Settlement
from workers.delivery import policy
from workers.delivery.batch_record import BatchRecord, Delivery, State
from workers.delivery.namespace_policy import SkipReason
from workers.delivery.outcomes import Delivered, Failed, NotAttempted, Rejected, Unavailable
from workers.delivery.retry import RetrySchedule


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
    if state is State.WAITING and delivery.parked is not None:
        return
    suspicion = delivery.suspicion
    refused_at = suspicion.refused_at if suspicion is not None and state is State.SUSPECTED else 0
    delivery.state = state
    delivery.row = replace(_known_row(delivery), not_before=due, refused_at=refused_at)


def _count_attempt(delivery: Delivery, schedule: RetrySchedule, now: int, rng: Random) -> None:
    """Count a failed attempt: the event is parked until its next one, or dead."""
    known, suspicion = _known_row(delivery), delivery.suspicion
    history = [*orjson.loads(known.history), [now, clean_reason(delivery.reason)]][-policy.MAX_HISTORY_ATTEMPTS :]
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
