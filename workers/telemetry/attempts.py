"""Describe a settled batch as attempts for the record. Pure: uses no clock and no database."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import groupby

import orjson

from app.outbox.column_values import WHOLE_LOG
from app.outbox.delivery import attempts
from app.outbox.delivery.attempts import Attempt, bounded
from workers.delivery.batch_record import BatchRecord, Delivery, State
from workers.delivery.outcomes import Delivered, NotAttempted, Outcome, Rejected, Unavailable

_SETTLED = {
    State.DELIVERED: attempts.DELIVERED,
    State.UNCHANGED: attempts.UNCHANGED,
    State.SUPERSEDED: attempts.SUPERSEDED,
}


def attempts_of(batch: BatchRecord) -> Iterator[Attempt]:
    """Yield the attempts of one batch.

    A run of delivered events of the log is one attempt, as are the events of a partition that were refused as
    unavailable; every failed attempt, and every parked event that was delivered, is one by itself. An event whose
    failure does not count, because an earlier one of its object failed as well, has none.
    """
    attempt = partial(
        Attempt,
        batch.target_id,
        at=batch.settled_at,
        duration=round(batch.seconds * 1000),
        replay_id=WHOLE_LOG if batch.replay is None else batch.replay.replay_id,
    )
    if batch.is_delivered and batch.read_to and batch.replay is None:
        # From position to position, so that those of contiguous batches can be joined.
        for partition, events in Counter(delivery.logged.partition for delivery in batch.deliveries).items():
            first, last = batch.read_after[partition] + 1, batch.read_to[partition]
            yield attempt(partition, first, last, outcome=attempts.DELIVERED, events=events)
        return
    by_partition: defaultdict[int, list[Delivery]] = defaultdict(list)
    for delivery in batch.deliveries:
        by_partition[delivery.logged.partition].append(delivery)
    for partition, deliveries in by_partition.items():
        deliveries.sort(key=lambda delivery: delivery.logged.seq)
        for outcome, run in _settled_runs(batch, deliveries):
            yield attempt(partition, run[0], run[-1], outcome=outcome, events=len(run))
        refused = []
        for delivery in deliveries:
            seq = delivery.logged.seq
            if delivery.row is not None and delivery.state in (State.FAILED, State.DEAD):
                outcome = attempts.REJECTED if isinstance(delivery.outcome, Rejected) else attempts.FAILED
                number, reason = delivery.row.attempts, bounded(delivery.reason)
                exchange = _exchange(delivery.outcome)
                yield attempt(partition, seq, seq, outcome=outcome, attempt=number, reason=reason, exchange=exchange)
            elif delivery.suspicion is not None:
                reason = bounded(delivery.reason)
                exchange = _exchange(delivery.outcome)
                yield attempt(partition, seq, seq, outcome=attempts.UNAVAILABLE, reason=reason, exchange=exchange)
            elif isinstance(delivery.outcome, Unavailable):
                refused.append(delivery)
        if refused:
            first, last, reason = refused[0].logged.seq, refused[-1].logged.seq, bounded(refused[-1].reason)
            exchange, events = _exchange(refused[-1].outcome), len(refused)
            yield attempt(
                partition, first, last, outcome=attempts.UNAVAILABLE, events=events, reason=reason, exchange=exchange
            )


def _exchange(outcome: Outcome) -> str | None:
    if isinstance(outcome, Delivered | NotAttempted) or outcome.exchange is None:
        return None
    return orjson.dumps(asdict(outcome.exchange)).decode()


def _settled_runs(batch: BatchRecord, deliveries: Sequence[Delivery]) -> Iterator[tuple[str, list[int]]]:
    """Yield the runs of settled events with the same outcome; each parked event is a run."""
    for outcome, group in groupby(deliveries, key=lambda delivery: _SETTLED.get(delivery.state, "")):
        # What a replay passes because it is parked or a dead letter is not superseded.
        if not outcome or (outcome == attempts.SUPERSEDED and batch.replay is not None):
            continue
        run = [delivery.logged.seq for delivery in group]
        yield from [(outcome, run)] if batch.read_to else [(outcome, [seq]) for seq in run]
