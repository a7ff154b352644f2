"""Turn outcomes into a settlement: which events are done, parked or dead. Pure: uses no clock and no database.

It keeps the order of the log per object: once an event of an object is parked, every later one waits behind it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from random import Random

import orjson

from app.outbox.delivery.logged_events import LoggedEvent
from app.outbox.delivery.parked import ObjectHash
from app.outbox.delivery.partition_reader import Batch, ParkedEvent
from app.outbox.delivery.reasons import clean_reason
from app.outbox.delivery.transitions.settlement import NewDeadLetter, ParkedRow, Settlement
from app.outbox.markers import NEVER
from workers.delivery.namespace_policy import SkipReason
from workers.delivery.outcomes import DELIVERED, Delivered, Failed, NotAttempted, Outcome, Rejected, Unavailable
from workers.delivery.retry import RetrySchedule
from workers.delivery.second_opinion import RefusedAgain, Suspect

_REMEMBERED = 10  # attempts kept in a parked event's history


class BehindParked:
    """Not sent: an earlier event of its object is parked."""


BEHIND_PARKED = BehindParked()
Result = Outcome | Suspect | SkipReason | BehindParked


@dataclass(frozen=True, slots=True)
class SettlementContext:
    """What a settlement depends on besides the results."""

    schedule: RetrySchedule
    now: int
    rng: Random = field(compare=False)


def settle_batch(batch: Batch, results: Sequence[Result], rules: SettlementContext) -> Settlement:
    """Settle events that were read from the log at the cursors.

    An event that is `Unavailable` or `NotAttempted` stays where it is, unless a later event of its partition got an
    answer: then it is parked without counting an attempt, so that the cursor can pass without sending the later one
    twice. It waits behind an earlier event of its object that this batch parked. If there is none, or that one became a
    dead letter, it is the object's head and due at once. A suspect is parked until it is due.
    """
    settlement = Settlement()
    for partition, seq in batch.scanned.items():
        settlement.partition(partition).position = seq
    if all(result is DELIVERED for result in results):
        for partition, count in Counter(logged.partition for logged in batch.events).items():
            settlement.partition(partition).delivered = count
        return settlement
    paired = sorted(zip(batch.events, results, strict=True), key=lambda pair: (pair[0].partition, pair[0].seq))
    for partition, group in groupby(paired, key=lambda pair: pair[0].partition):
        pairs = list(group)
        end = _stays_from(pairs)
        if end < len(pairs):
            settlement.partition(partition).position = pairs[end - 1][0].seq if end else None
        blocked: set[ObjectHash] = set()
        for logged, result in pairs[:end]:
            _settle_one(settlement, logged, result, blocked, rules)
    return settlement


def settle_parked(parked: Sequence[ParkedEvent], results: Sequence[Result], rules: SettlementContext) -> Settlement:
    """Settle parked events that were retried, and those sent behind them; oldest first within each object."""
    settlement = Settlement()
    blocked: set[ObjectHash] = set()
    for entry, result in zip(parked, results, strict=True):
        logged = entry.logged
        progress = settlement.partition(logged.partition)
        match result:
            case Delivered():
                progress.delivered += 1
            case SkipReason():
                _count_unsent(settlement, logged, result)
            case Unavailable() | NotAttempted() | BehindParked():
                continue
            case _ if logged.object in blocked:  # it waits behind an earlier one, whatever its own result
                continue
            case Failed() | Rejected():
                progress.failed += 1
                attempt = _attempt(entry, result, rules.now)
                due = _next_try(attempt, entry.last_tried, result, rules)
                if due is not None:
                    settlement.repark.append(replace(attempt, not_before=due))
                    blocked.add(logged.object)
                    continue
                settlement.deaths.append(_death(attempt, logged, result.reason))
                progress.dead += 1
            case Suspect():
                settlement.repark.append(_suspected(entry, result))
                blocked.add(logged.object)
                continue
        progress.replayed += entry.replayed
        settlement.unpark.append((logged.partition, logged.seq))
        settlement.unblocked.add(logged.object)
    return settlement


def _stays_from(pairs: Sequence[tuple[LoggedEvent, Result]]) -> int:
    answers = [i for i, (_, result) in enumerate(pairs) if isinstance(result, Delivered | Failed | Rejected | Suspect)]
    answered = answers[-1] if answers else -1
    for index in range(answered + 1, len(pairs)):
        if isinstance(pairs[index][1], Unavailable | NotAttempted):
            return index
    return len(pairs)


def _settle_one(
    settlement: Settlement, logged: LoggedEvent, result: Result, blocked: set[ObjectHash], rules: SettlementContext
) -> None:
    progress = settlement.partition(logged.partition)
    match result:
        case Delivered():
            progress.delivered += 1
        case SkipReason():
            _count_unsent(settlement, logged, result)
        case BehindParked():
            settlement.park.append(ParkedRow(logged.partition, logged.seq, logged.key_hash, NEVER))
        case _ if logged.object in blocked:
            settlement.park.append(ParkedRow(logged.partition, logged.seq, logged.key_hash, NEVER))
        case Unavailable() | NotAttempted():
            settlement.park.append(ParkedRow(logged.partition, logged.seq, logged.key_hash, 0))
            blocked.add(logged.object)
        case Suspect():
            settlement.park.append(_suspected(ParkedEvent(logged, 0, 0, "[]"), result))
            blocked.add(logged.object)
        case Failed() | Rejected():
            progress.failed += 1
            attempt = _attempt(ParkedEvent(logged, 0, 0, "[]"), result, rules.now)
            due = _next_try(attempt, 0, result, rules)
            if due is None:
                settlement.deaths.append(_death(attempt, logged, result.reason))
                progress.dead += 1
            else:
                settlement.park.append(replace(attempt, not_before=due))
                blocked.add(logged.object)


def _count_unsent(settlement: Settlement, logged: LoggedEvent, why: SkipReason) -> None:
    progress = settlement.partition(logged.partition)
    if why is SkipReason.SUPERSEDED:
        progress.superseded += 1
    else:
        progress.delivered += 1  # the target already holds what this event would write


def _attempt(entry: ParkedEvent, result: Failed | Rejected, now: int) -> ParkedRow:
    tried = [*orjson.loads(entry.history), [now, clean_reason(result.reason)]][-_REMEMBERED:]
    logged = entry.logged
    return ParkedRow(
        partition=logged.partition,
        seq=logged.seq,
        key_hash=logged.key_hash,
        not_before=NEVER,
        attempts=entry.attempts + 1,
        first_tried=entry.first_tried or now,
        last_tried=now,
        history=orjson.dumps(tried).decode(),
        refused_at=result.refused_at if isinstance(result, RefusedAgain) else 0,
    )


def _suspected(entry: ParkedEvent, suspect: Suspect) -> ParkedRow:
    """Return the row of a suspect: attempts, times and history stay as they are."""
    logged = entry.logged
    return ParkedRow(
        partition=logged.partition,
        seq=logged.seq,
        key_hash=logged.key_hash,
        not_before=suspect.due,
        attempts=entry.attempts,
        first_tried=entry.first_tried,
        last_tried=entry.last_tried,
        history=entry.history,
        refused_at=suspect.refused_at,
    )


def _next_try(attempt: ParkedRow, last_tried: int, result: Failed | Rejected, rules: SettlementContext) -> int | None:
    if isinstance(result, Rejected):
        return None
    return rules.schedule.next_try(
        attempt.attempts, attempt.first_tried, last_tried, rules.now, rules.rng, result.retry_after
    )


def _death(attempt: ParkedRow, logged: LoggedEvent, reason: str) -> NewDeadLetter:
    return NewDeadLetter(
        partition=logged.partition,
        seq=logged.seq,
        event_id=logged.event.id,
        reason=clean_reason(reason),
        attempts=attempt.attempts,
        first_tried=attempt.first_tried,
        last_tried=attempt.last_tried,
        history=attempt.history,
    )
