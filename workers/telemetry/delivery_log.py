"""Log a worker's deliveries: one line for each settled batch, and one for each failed attempt.

The batches of a backlog share a line each second. Each line is a sentence for people, with its values as structured
members for programs. A batch without results is not logged. Events that wait because their target is unavailable did
not fail; only the line about the target reports them.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from app.events.model import trace_fields
from app.logs import printable
from app.outbox.delivery.settlement_store import ParkedRow
from workers.delivery import retry
from workers.delivery.outcomes import Rejected
from workers.delivery.settlement import BatchRecord, Delivery, Observer, State

log = logging.getLogger("bucketwire.partitions")

_COUNTS = ("delivered", "superseded", "dead", "parked", "retried")


def format_partitions(partitions: Iterable[int]) -> str:
    """Return partition numbers as text, for people and for messages: `0-3,7`."""
    runs: list[list[int]] = []
    for partition in sorted(partitions):
        if runs and runs[-1][-1] == partition - 1:
            runs[-1][1:] = [partition]
        else:
            runs.append([partition])
    return ",".join("-".join(map(str, run)) for run in runs)


def counts_text(counts: Mapping[str, int]) -> str:
    """Return the non-zero counts as text: `delivered=7 parked=1`."""
    return " ".join(f"{name}={count}" for name, count in sorted(counts.items()) if count)


class BatchLog(Observer):
    """Logs the batches of one lease: the first at once, then one line for all of a second, the rest when it ends.

    `clock` returns seconds, monotonically.
    """

    def __init__(self, target: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._target = target
        self._clock = clock
        self._written = float("-inf")
        self._begin()

    def _begin(self) -> None:
        self._partitions: set[int] = set()
        self._counts: Counter[str] = Counter()
        self._batches, self._seconds, self._trace = 0, 0.0, ""

    def batch_settled(self, batch: BatchRecord) -> None:
        """Log the failed attempts, and the batch, or add it to a line that is written later."""
        for delivery, row in batch.failures():
            _log_failed_attempt(self._target, delivery, row, batch)
        counts = batch.counts()
        if not any(counts.values()) or not log.isEnabledFor(logging.INFO):
            return
        self._partitions.update(batch.partitions)
        self._counts.update(counts)
        self._batches += 1
        self._seconds += self._clock() - batch.began
        self._trace = batch.trace
        if self._clock() - self._written >= retry.LOG_LINE_SECONDS:
            self.lease_ended()

    def lease_ended(self) -> None:
        """Log the batches that have no line yet."""
        if not self._batches:
            return
        self._written = self._clock()
        text, counts, batches = format_partitions(self._partitions), self._counts, self._batches
        members = {"target": self._target, "partitions": text, **dict.fromkeys(_COUNTS, 0), **counts}
        members |= {"batches": batches, "duration": round(self._seconds, 6), **dict(trace_fields(self._trace)[:1])}
        shared = f" ({batches} batches)" if batches > 1 else ""
        results = counts_text(counts)
        log.info("%s partitions=%s %s in %.3f s%s", self._target, text, results, self._seconds, shared, extra=members)
        self._begin()


def _log_failed_attempt(target: str, delivery: Delivery, row: ParkedRow, batch: BatchRecord) -> None:
    """Log a failed attempt at an event; as a warning only if there will be no further attempt."""
    event = delivery.logged.event
    is_dead = delivery.state is State.DEAD
    next_try_in = None if is_dead else max(0, row.not_before - batch.settled_at) / 1000
    outcome = "rejected" if isinstance(delivery.outcome, Rejected) else "failed"
    traced = dict(trace_fields(event.trace)[:1])  # only the first of the two fields, by which a trace is found
    log.log(
        logging.WARNING if is_dead else logging.INFO,
        "%s event=%s%s %s, attempt %d in %.3f s, %s: %s",
        target,
        event.id,
        "".join(f" {name}={value}" for name, value in traced.items()),
        outcome,
        row.attempts,
        batch.seconds,
        "dead" if next_try_in is None else f"again in {next_try_in:.1f} s",
        printable(delivery.reason),
        extra={
            "target": target,
            "event": event.id,
            **traced,
            "outcome": outcome,
            "attempt": row.attempts,
            "duration": round(batch.seconds, 6),
            "dead": is_dead,
            "next_try_in": next_try_in,
            "reason": delivery.reason,
        },
    )
