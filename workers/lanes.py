"""Work off one lease: load, deliver, settle, until its lanes are empty or its time is over."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from random import Random

from app.events.model import Event
from app.outbox.database import now_ms
from app.outbox.leases import Lease, ReplayLane
from app.outbox.redelivery import carry_out
from app.outbox.store import Batch, Logged, Object, Place, Reader, Settlement, Store
from workers import figures
from workers.logs import counted, counts_text, setbacks, tell_setback, tell_settled
from workers.mirror import Policy, Unsent, Verdict, verdicts
from workers.outcomes import DELIVERED, Failed, Outcome, Unavailable
from workers.retry import RetrySchedule
from workers.settling import BEHIND_PARKED, Result, Rules, settle_batch, settle_parked, unavailable
from workers.targets.base import NO_LEASE, LeaseCheck, LeaseExpired, Target, TargetUnavailable

log = logging.getLogger("bucketwire.lanes")


@dataclass(slots=True)
class Pace:
    """How many events to hand to a target in one call: as many as it has shown to take in about a second.

    A target that hangs thus holds a lane with few events, and a fast one gets full batches after a few calls.
    """

    limit: int
    size: int = 16

    def took(self, events: int, seconds: float) -> None:
        """Learn from one call."""
        if seconds > 3:
            self.size = max(1, self.size // 4)
        elif seconds < 1 and events >= self.size:
            self.size = min(self.limit, self.size * 4)


@dataclass(slots=True)
class Work:
    """One target as a worker has it open, with its settings in the form that lanes need."""

    name: str  # its ARN, for the log
    target: Target
    policy: Policy
    schedule: RetrySchedule
    window: int
    pace: Pace
    opened: bool = False


@dataclass(slots=True)
class Tally:
    """What one lease came to; `unavailable` is why it ended early."""

    counts: Counter[str] = field(default_factory=Counter)
    unavailable: Unavailable | None = None

    def __str__(self) -> str:
        return counts_text(self.counts) or "nothing due"


class Lanes:
    """One lease at work. `clock` gives milliseconds since 1970; `guard` says whether the lease still holds."""

    def __init__(
        self,
        store: Store,
        work: Work,
        lease: Lease,
        clock: Callable[[], int] = now_ms,
        guard: LeaseCheck = NO_LEASE,
    ) -> None:
        self._store = store
        self._work = work
        self._lease = lease
        self._clock = clock
        self._guard = guard
        self._in_hand: tuple[Sequence[Logged], Sequence[Verdict]] = ((), ())
        self._rng = Random()  # noqa: S311 - jitter, not a secret
        self._figures = figures.of(work.name)
        self._took = 0.0  # seconds of the last call to the target
        self.tally = Tally()

    def work_off(self, stop: Callable[[], bool]) -> Tally:
        """Until the lanes are empty, the target is unavailable, or `stop()`. Raises `LeaseLost`, `LeaseExpired`."""
        with self._store.reading(self._lease, newest=self._work.policy is Policy.MIRROR) as reader:
            carry_out(self._store.database, reader, self._lease, partial(self._newest_sent, reader))
            while self._turn(reader) and self.tally.unavailable is None and not stop():
                pass
        return self.tally

    def in_hand(self) -> dict[Object, int]:
        """The objects whose events may have been sent since the last settlement, each with the oldest one's seq."""
        oldest: dict[Object, int] = {}
        for logged, verdict in zip(*self._in_hand, strict=True):
            if not isinstance(verdict, Unsent):
                oldest[logged.object] = min(logged.seq, oldest.get(logged.object, logged.seq))
        return oldest

    def _newest_sent(self, reader: Reader, events: Sequence[Logged]) -> Logged | None:
        """The last of these events, all of one object, that would be sent now."""
        decided = verdicts(events, self._work.policy, reader)
        paired = zip(events, decided, strict=True)
        return next((logged for logged, verdict in reversed([*paired]) if not isinstance(verdict, Unsent)), None)

    def _turn(self, reader: Reader) -> bool:
        """One batch of each kind of due work; whether there was any."""
        heads = reader.parked_heads()
        due = [line for line, not_before in heads.items() if not_before <= self._clock()]
        worked = bool(due) and self._parked(reader, due)
        waiting = heads.keys() if not due else reader.parked_heads().keys()
        for replay in list(self._lease.replays):
            if self.tally.unavailable is None:
                worked |= self._replay(reader, replay, waiting)
                waiting = reader.parked_heads().keys()
        if self.tally.unavailable is None:
            worked |= self._log(reader, waiting)
        return worked

    def _parked(self, reader: Reader, due: Sequence[Object]) -> bool:
        began = time.monotonic()
        some = due[: self._work.pace.size]
        parked = reader.load_parked(some, self._work.pace.size)
        events = [entry.logged for entry in parked]
        results = self._deliver(reader, events)
        self._settle(settle_parked(parked, results, self._rules()), events, results, began)
        return True

    def _log(self, reader: Reader, waiting: Set[Object]) -> bool:
        began = time.monotonic()
        batch = reader.load(self._work.pace.size)
        if not batch.events:
            return False
        results = self._results(reader, batch, waiting, set())
        self._settle(settle_batch(batch, results, self._rules()), batch.events, results, began)
        return True

    def _replay(self, reader: Reader, replay: ReplayLane, waiting: Set[Object]) -> bool:
        began = time.monotonic()
        batch = reader.load_replay(replay, self._work.pace.size)
        standing = reader.standing([(event.lane, event.seq) for event in batch.events])
        results = self._results(reader, batch, waiting, standing)
        settlement = settle_batch(batch, results, self._rules())
        progress = settlement.lane(replay.lane)
        settlement.replay = (replay, replay.position if progress.position is None else progress.position)
        progress.position = None  # the log's own cursor stays where it is
        self._settle(settlement, batch.events, results, began)
        return True

    def _rules(self) -> Rules:
        return Rules(self._work.schedule, self._clock(), self._rng)

    def _results(self, reader: Reader, batch: Batch, waiting: Set[Object], standing: Set[Place]) -> list[Result]:
        """Deliver what may go; what stands behind a parked event, or in line already, does not."""
        if not waiting and not standing:
            return self._deliver(reader, batch.events)
        results: list[Result] = [BEHIND_PARKED] * len(batch.events)
        free = []
        for index, logged in enumerate(batch.events):
            if (logged.lane, logged.seq) in standing:
                results[index] = Unsent.SUPERSEDED
            elif logged.object not in waiting:
                free.append(index)
        delivered = self._deliver(reader, [batch.events[index] for index in free])
        for index, result in zip(free, delivered, strict=True):
            results[index] = result
        return results

    def _deliver(self, reader: Reader, events: Sequence[Logged]) -> list[Result]:
        decided = verdicts(events, self._work.policy, reader)
        sent = [verdict for verdict in decided if not isinstance(verdict, Unsent)]
        if sent:
            self._guard.check()
            self._in_hand = (events, decided)
        outcomes = self._send(sent)
        # What needs no sending counts, too: else batches of a mirror that is far behind would stay small.
        self._work.pace.took(len(events), self._took)
        if len(sent) == len(decided):
            return list(outcomes)
        left = iter(outcomes)
        return [verdict if isinstance(verdict, Unsent) else next(left) for verdict in decided]

    def _send(self, events: Sequence[Event]) -> Sequence[Outcome]:
        self._took = 0.0
        if not events:
            return ()
        work = self._work
        started = time.monotonic()
        try:
            if not work.opened:
                work.target.open()
                work.opened = True
            outcomes = work.target.deliver(events, work.window, self._guard)
        except LeaseExpired:
            # It may have been stopped anywhere: what is still under way must not be taken for an answer to the next.
            work.target.close()
            work.opened = False
            raise
        except TargetUnavailable as error:
            outcomes = [Unavailable(error.reason, error.retry_after, error.pause)] * len(events)
        except Exception as error:
            # An adapter's own defect must not stop the lane: it is counted against the events, and so seen and bounded.
            log.exception("%s: unforeseen", work.name)
            outcomes = [Failed(f"unforeseen {type(error).__name__}")] * len(events)
        self._took = time.monotonic() - started
        if self._figures is not None:
            self._figures.called(outcomes, self._took)
        return outcomes

    def _settle(
        self, settlement: Settlement, events: Sequence[Logged], results: Sequence[Result], began: float
    ) -> None:
        now = self._clock()
        self._store.settle(self._lease, settlement, now)
        self._in_hand = ((), ())
        self._tell(settlement, events, results, began)
        if self._figures is not None and settlement.replay is None:
            done = [event.received_at for event, result in zip(events, results, strict=True) if result is DELIVERED]
            self._figures.delivered(done, now)
        self.tally.unavailable = unavailable(results)
        if self.tally.unavailable is not None:
            self._work.target.close()
            self._work.opened = False

    def _tell(self, settlement: Settlement, events: Sequence[Logged], results: Sequence[Result], began: float) -> None:
        counts = counted(settlement)
        self.tally.counts += counts
        now = self._clock()
        for setback in setbacks(settlement, zip(events, results, strict=True)):
            tell_setback(self._work.name, setback, self._took, now)
        tell_settled(self._work.name, settlement.progress, counts, time.monotonic() - began)
