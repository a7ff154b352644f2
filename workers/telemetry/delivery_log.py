"""Log a worker's deliveries: one line for each settled batch, and one for each failed attempt.

The batches of a backlog share a line each second. Each line is a sentence for people, with its values as structured
members for programs. A batch without results is not logged. Events that wait because their target is unavailable did
not fail; only the line about the target reports them.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from app.events.model import Event
from app.events.trace import fields
from app.logs import printable
from app.outbox.delivery.logged_events import LoggedEvent
from app.outbox.delivery.transitions.settlement import Settlement
from workers.delivery.outcomes import Failed, Rejected
from workers.delivery.settlement import Result

log = logging.getLogger("bucketwire.partitions")

_SHARED = 1.0  # seconds whose batches share a line


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """A failed attempt at one event. `due` is the time of the next attempt (ms), None for a dead letter."""

    event: Event
    outcome: str  # failed | rejected
    attempt: int
    due: int | None
    reason: str


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


def counted(settlement: Settlement) -> Counter[str]:
    """Return how many events a settlement moves to each delivery state."""
    counts: Counter[str] = Counter()
    for progress in settlement.progress.values():
        counts["delivered"] += progress.delivered
        counts["superseded"] += progress.superseded
        counts["dead"] += progress.dead
    counts["parked"] = len(settlement.park)
    # Without the refusals of suspects: they are no attempts, and during an outage each probe causes one.
    counts["retried"] = sum(park.last_tried >= park.refused_at for park in settlement.repark)
    return counts


def failed_attempts(settlement: Settlement, results: Iterable[tuple[LoggedEvent, Result]]) -> Iterator[FailedAttempt]:
    """Yield the attempts that a settlement counts against its events, in no particular order."""
    if not (settlement.park or settlement.repark or settlement.deaths):
        return
    tried = {
        (logged.partition, logged.seq): (logged.event, result)
        for logged, result in results
        if isinstance(result, Failed | Rejected)
    }
    for park in chain(settlement.park, settlement.repark):
        if park.attempts and (park.partition, park.seq) in tried:
            event, result = tried[park.partition, park.seq]
            yield FailedAttempt(event, "failed", park.attempts, park.not_before, result.reason)
    for death in settlement.deaths:
        event, result = tried[death.partition, death.seq]
        outcome = "rejected" if isinstance(result, Rejected) else "failed"
        yield FailedAttempt(event, outcome, death.attempts, None, result.reason)


class BatchLog:
    """Logs the results of the batches of one lease: the first at once, then one line for all of a second.

    `write` logs what is left. Batches without results are not logged. `clock` returns seconds, monotonically.
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

    def add(self, partitions: Iterable[int], counts: Mapping[str, int], seconds: float, trace: str = "") -> None:
        """Add the results of a batch; `trace` is the context of its last call to the target."""
        if not any(counts.values()) or not log.isEnabledFor(logging.INFO):
            return
        self._partitions.update(partitions)
        self._counts.update(counts)
        self._batches += 1
        self._seconds += seconds
        self._trace = trace
        if self._clock() - self._written >= _SHARED:
            self.write()

    def write(self) -> None:
        """Log the batches that have no line yet."""
        if not self._batches:
            return
        self._written = self._clock()
        text, counts, batches = format_partitions(self._partitions), self._counts, self._batches
        members = {"target": self._target, "partitions": text, **counts, "batches": batches}
        members |= {"duration": round(self._seconds, 6), **dict(fields(self._trace)[:1])}
        shared = f" ({batches} batches)" if batches > 1 else ""
        results = counts_text(counts)
        log.info("%s partitions=%s %s in %.3f s%s", self._target, text, results, self._seconds, shared, extra=members)
        self._begin()


def log_failed_attempt(target: str, setback: FailedAttempt, seconds: float, now: int) -> None:
    """Log a failed attempt at an event; as a warning only if there will be no further attempt."""
    again = None if setback.due is None else max(0, setback.due - now) / 1000
    traced = dict(fields(setback.event.trace)[:1])  # only the first of the two fields, by which a trace is found
    log.log(
        logging.WARNING if again is None else logging.INFO,
        "%s event=%s%s %s, attempt %d in %.3f s, %s: %s",
        target,
        setback.event.id,
        "".join(f" {name}={value}" for name, value in traced.items()),
        setback.outcome,
        setback.attempt,
        seconds,
        "dead" if again is None else f"again in {again:.1f} s",
        printable(setback.reason),
        extra={
            "target": target,
            "event": setback.event.id,
            **traced,
            "outcome": setback.outcome,
            "attempt": setback.attempt,
            "duration": round(seconds, 6),
            "dead": again is None,
            "next_try_in": again,
            "reason": setback.reason,
        },
    )
