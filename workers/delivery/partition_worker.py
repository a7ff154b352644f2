"""Work off one lease: load, deliver and settle until its partitions are empty or its time is over."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from random import Random

from app.events.model import Event
from app.outbox.delivery import redelivery
from app.outbox.delivery.leases import Lease, LeaseLost, ReplayPartition
from app.outbox.delivery.logged_events import LoggedEvent, LogPosition
from app.outbox.delivery.parked import ObjectHash
from app.outbox.delivery.partition_reader import Batch, PartitionReader, Refusals
from app.outbox.delivery.policies import REDELIVERY
from app.outbox.delivery.rate_limits import RateLimit
from app.outbox.delivery.transitions.settlement import Settlement
from app.outbox.delivery.transitions.settlement_store import SettlementStore
from app.outbox.delivery_times import histogram
from app.outbox.engine.database import DatabaseUnavailable, now_ms
from app.outbox.engine.db_errors import may_be_a_value
from workers.delivery.breaker import back_off
from workers.delivery.event_wait import FEW, NO_WAIT, EventWait
from workers.delivery.namespace_policy import Decision, Policy, SkipReason, decide
from workers.delivery.outcomes import DELIVERED, NOT_ATTEMPTED, Failed, Outcome, Unavailable
from workers.delivery.retry import RetrySchedule
from workers.delivery.second_opinion import MOST_ASKED, Answer, RefusedAgain, SecondOpinion, Suspect, judged
from workers.delivery.settlement import BEHIND_PARKED, Result, SettlementContext, settle_batch, settle_parked
from workers.targets import call_trace
from workers.targets.base import NO_LEASE, LeaseCheck, LeaseExpired, Target, TargetUnavailable
from workers.telemetry import metrics
from workers.telemetry.attempt_recorder import AttemptRecorder
from workers.telemetry.attempts import attempts_of
from workers.telemetry.delivery_log import BatchLog, counted, counts_text, failed_attempts, log_failed_attempt

log = logging.getLogger("bucketwire.partitions")

_ANY = 1000  # due objects to sample from while the target is in doubt
_QUICK = 0.05  # seconds for a batch


_FIRST_WAIT, _LONGEST_WAIT = 5_000, 300_000  # milliseconds, for a replay whose turn failed unexpectedly


@dataclass(slots=True)
class BatchSizer:
    """How many events to pass to a target in one call: as many as it has proved to take in about a second.

    So a target that hangs holds up a partition with few events, and a fast one gets full batches after a few calls.
    """

    limit: int
    size: int = 16

    def took(self, events: int, seconds: float) -> None:
        """Adjust the size after a call that delivered `events` in `seconds`."""
        if seconds > 3:
            self.size = max(1, self.size // 4)
        elif seconds < 1 and events >= self.size:
            self.size = min(self.limit, self.size * 4)


@dataclass(slots=True)
class OpenTarget:
    """One target as a worker has it open, with its settings in the form that partitions need."""

    name: str  # its ARN, for the log
    target: Target
    policy: Policy
    schedule: RetrySchedule
    window: int
    sizer: BatchSizer
    opened: bool = False
    quick: bool = False  # whether the last batch took little time
    rate: int = 0  # most events per second; 0: no limit
    failing_replays: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    """Maps (replay, partition) to the number of consecutive failed turns and the time (ms) of the next turn."""


@dataclass(slots=True)
class LeaseSummary:
    """The result of one lease; `unavailable` is why it ended early.

    `answered` is set if the target answered for at least one event itself (delivered, failed or rejected).
    """

    counts: Counter[str] = field(default_factory=Counter)
    unavailable: Unavailable | None = None
    answered: bool = False

    def __str__(self) -> str:
        return counts_text(self.counts) or "nothing due"


class PartitionWorker:
    """Works off one lease. `clock` returns milliseconds since 1970; `guard` checks that the lease still holds.

    `recorder` gets the attempts, for the record. `request_redelivery` is called with the objects of requests that may
    arrive late and the time by which they have; see `app.outbox.delivery.redelivery.request`, which is the default.
    """

    def __init__(
        self,
        store: SettlementStore,
        work: OpenTarget,
        lease: Lease,
        clock: Callable[[], int] = now_ms,
        guard: LeaseCheck = NO_LEASE,
        recorder: AttemptRecorder | None = None,
        request_redelivery: Callable[[Mapping[ObjectHash, int], int], None] | None = None,
    ) -> None:
        self._store = store
        self._work = work
        self._lease = lease
        self._clock = clock
        self._guard = guard
        self._recorder = recorder
        self._request_redelivery = request_redelivery or partial(
            redelivery.request, store.database, lease.target_id, epoch=lease.epoch
        )
        self._late: set[str] = set()  # ids of the current batch's events that may arrive late
        self._unsettled: tuple[Sequence[LoggedEvent], Sequence[Decision]] = ((), ())
        self._rng = Random()  # noqa: S311 - jitter, not a secret
        self._metrics = metrics.of(work.name)
        self._batch_log = BatchLog(work.name)
        self._took = 0.0  # seconds that the target took for the current batch
        self._opinion = SecondOpinion(self._call, self._rng, probing=lease.probing)
        self._stop: Callable[[], bool] = lambda: False
        self._limit = RateLimit(store.database, lease.target_id, work.rate, clock) if work.rate else None
        self._allowed = work.sizer.limit  # events that may be sent in this turn
        self._refusals: Refusals | None = None  # the outbox's record of them when the target was last in doubt
        # Of the last turn: the log's events, their partitions, whether those were read to the end, and whether parked
        # events were due.
        self._events, self._busy, self._at_end = 0, frozenset[int](), False
        self._retried = False
        self._moment = 0  # the time of the current batch, by which refusals and deliveries are ordered
        self.summary = LeaseSummary()

    def work_off(self, stop: Callable[[], bool], wait: EventWait = NO_WAIT) -> LeaseSummary:
        """Deliver until the partitions are empty, the target is unavailable, or `stop()` is true.

        `wait` may wait for more events before the partitions count as empty.

        Raises `LeaseLost`, `LeaseExpired`.
        """
        self._stop = stop
        try:
            self._work_off(wait)
        finally:
            self._batch_log.write()
        self.summary.answered = self._opinion.answered
        return self.summary

    def _work_off(self, wait: EventWait) -> None:
        with self._store.reading(self._lease, newest=self._work.policy is Policy.MIRROR) as reader:
            choose = partial(self._newest_sent, reader)
            redelivery.park_redeliveries(self._store.database, reader, self._lease, choose, self._clock())
            while self._turn(reader) and self.summary.unavailable is None and not self._stop():
                # Without tokens there may be events that were not sent; if none arise, the next turn ends the lease.
                at_end = self._at_end and not self._retried and self._allowed > 0
                if not wait.goes_on(reader, self._events, at_end=at_end, shares=self._shares()):
                    break
                reader.expect_changes()

    def unsettled(self) -> dict[ObjectHash, int]:
        """Return the objects whose events may have been sent since the last settlement, with the seq of the oldest."""
        oldest: dict[ObjectHash, int] = {}
        for logged, verdict in zip(*self._unsettled, strict=True):
            if not isinstance(verdict, SkipReason):
                oldest[logged.object] = min(logged.seq, oldest.get(logged.object, logged.seq))
        return oldest

    def _shares(self) -> bool:
        """Return whether others could work off some of the partitions at the same time, and that would be faster."""
        if self._limit is not None:  # whose tokens are what the partitions wait for
            return False
        busy = self._busy if self._events > FEW else frozenset()
        return len(busy | {replay.partition for replay in self._lease.replays}) > 1

    def _newest_sent(self, reader: PartitionReader, events: Sequence[LoggedEvent]) -> LoggedEvent | None:
        """Return the last of these events, all of one object, that would be sent now."""
        decided = decide(events, self._work.policy, reader)
        paired = zip(events, decided, strict=True)
        return next((logged for logged, verdict in reversed([*paired]) if not isinstance(verdict, SkipReason)), None)

    def _turn(self, reader: PartitionReader) -> bool:
        """Deliver one batch of each kind of due work; return whether there was any.

        The next kind serves as the second opinion on what was refused in one. A target that is in doubt after all of
        them is unavailable.
        """
        if self._limit is not None:
            self._allowed = self._limit.take(self._work.sizer.size)
            if not self._allowed:  # the drain offers these partitions again when there are tokens
                return False
        worked = self._batches(reader)
        if self._limit is not None and self._allowed:
            self._limit.give_back(self._allowed)
        self.summary.unavailable = self._opinion.verdict(self._refusals)
        if self.summary.unavailable is not None:
            self._work.target.close()
            self._work.opened = False
        return worked

    def _batches(self, reader: PartitionReader) -> bool:
        self._events, self._busy, self._at_end, self._retried = 0, frozenset(), False, False
        kinds = [self._parked, self._replays, self._log]
        if self._limit is not None:  # whichever is first may take all tokens
            self._rng.shuffle(kinds)
        worked = False
        for deliver in kinds:
            if self._opinion.is_certain or not self._allowed:
                break
            if worked:
                reader.expect_changes()
            worked |= deliver(reader)
        return worked

    def _parked(self, reader: PartitionReader) -> bool:
        began = time.monotonic()
        due = reader.due_objects(self._clock(), _ANY if self._opinion.in_doubt else self._work.sizer.size)
        if not due:
            return False
        self._retried = True
        # While the target is in doubt, choose objects at random: the first one may be the only one that it refuses.
        size = min(len(due), self._work.sizer.size)
        some = self._rng.sample(due, min(size, MOST_ASKED)) if self._opinion.in_doubt else due[:size]
        parked = reader.load_parked(some, self._work.sizer.size)
        events = [entry.logged for entry in parked]
        results = self._deliver(reader, events, [entry.refused_at for entry in parked])
        self._settle(settle_parked(parked, results, self._rules()), events, results, began)
        return True

    def _replays(self, reader: PartitionReader) -> bool:
        worked = False
        for replay in list(self._lease.replays):
            if not self._opinion.is_certain and self._allowed:
                worked |= self._try_replay(reader, replay)
            if not self._guard.has_time() or not self._allowed:  # each replay would make one more request
                break
        return worked

    def _log(self, reader: PartitionReader) -> bool:
        began = time.monotonic()
        batch = reader.load(self._work.sizer.size)
        self._events, self._busy = len(batch.events), frozenset(event.partition for event in batch.events)
        self._at_end = batch.at_end
        if not batch.events and not batch.more:
            return False
        # A batch without events settles how far the log was read.
        results = self._results(reader, batch, set()) if batch.events else []
        self._work.quick = self._took < _QUICK
        self._settle(settle_batch(batch, results, self._rules()), batch.events, results, began)
        return True

    def _try_replay(self, reader: PartitionReader, replay: ReplayPartition) -> bool:
        """Call `_replay`; postpone a replay that fails, so that the events of the log continue."""
        place, failing = (replay.replay_id, replay.partition), self._work.failing_replays
        failures, due = failing.get(place, (0, 0))
        worked = False
        if due <= self._clock():
            # Events that the log's own cursor passed while the replay was postponed are older than what the replay
            # sends now, so the replay sends them once more, in order.
            replay.until = max(replay.until, self._lease.positions[replay.partition])
            try:
                worked = self._replay(reader, replay)
            except (LeaseLost, LeaseExpired):
                raise
            except Exception as error:
                if isinstance(error, DatabaseUnavailable) and not may_be_a_value(error):
                    raise
                wait = min(_LONGEST_WAIT, _FIRST_WAIT << min(failures, 10))
                failing[place] = (failures + 1, self._clock() + wait)
                log.exception(
                    "%s: replay %d fails in partition %d, next try in %d s; `bucketwire replay cancel %d` ends it",
                    self._work.name, replay.replay_id, replay.partition, wait // 1000, replay.replay_id,
                )  # fmt: skip
            else:
                failing.pop(place, None)
                return worked
        self._lease.replays = [other for other in self._lease.replays if other is not replay]
        return worked

    def _replay(self, reader: PartitionReader, replay: ReplayPartition) -> bool:
        began = time.monotonic()
        batch = reader.load_replay(replay, self._work.sizer.size)
        parked_or_dead = reader.parked_or_dead([(event.partition, event.seq) for event in batch.events])
        results = self._results(reader, batch, parked_or_dead)
        settlement = settle_batch(batch, results, self._rules())
        progress = settlement.partition(replay.partition)
        settlement.replay = (replay, replay.position if progress.position is None else progress.position)
        progress.position = None  # the log's own cursor stays where it is
        self._settle(settlement, batch.events, results, began)
        return True

    def _rules(self) -> SettlementContext:
        return SettlementContext(self._work.schedule, self._clock(), self._rng)

    def _results(self, reader: PartitionReader, batch: Batch, parked_or_dead: Set[LogPosition]) -> list[Result]:
        """Deliver the events that may be sent: not those behind a parked event, nor those already parked or dead."""
        waiting = reader.waiting(batch.events)
        if not waiting and not parked_or_dead:
            return self._deliver(reader, batch.events)
        results: list[Result] = [BEHIND_PARKED] * len(batch.events)
        free = []
        for index, logged in enumerate(batch.events):
            if (logged.partition, logged.seq) in parked_or_dead:
                results[index] = SkipReason.SUPERSEDED
            elif logged.object not in waiting:
                free.append(index)
        delivered = self._deliver(reader, [batch.events[index] for index in free])
        for index, result in zip(free, delivered, strict=True):
            results[index] = result
        return results

    def _deliver(
        self, reader: PartitionReader, events: Sequence[LoggedEvent], refused_before: Sequence[int] | None = None
    ) -> list[Result]:
        """Send what needs sending; `refused_before` is set for parked events only (ms since 1970, 0 = never)."""
        decided = decide(events, self._work.policy, reader)
        sent = [index for index, verdict in enumerate(decided) if not isinstance(verdict, SkipReason)]
        if self._limit is not None:  # the rest stays where it is
            sent = sent[: self._allowed]
            self._allowed -= len(sent)
        if sent:
            self._guard.check()
            self._unsettled = (events, decided)
        self._took = 0.0
        try:
            answers = self._opinion.send(
                [event for index in sent if isinstance(event := decided[index], Event)], self._stop
            )
        finally:
            self._expect_late([(events[index], decided[index]) for index in sent])
        # Events that need no sending count too; otherwise batches of a mirror that is far behind would stay small.
        self._work.sizer.took(len(events), self._took)
        # Later than the previous batch by 2 ms, so that a time in between exists.
        self._moment = max(self._clock(), self._moment + 2)
        if any(isinstance(answer, Suspect) for answer in answers):
            before = [refused_before[index] for index in sent] if refused_before is not None else None
            answers = self._with_decisions(reader, [events[index] for index in sent], answers, before)
        results: list[Result] = [verdict if isinstance(verdict, SkipReason) else NOT_ATTEMPTED for verdict in decided]
        for index, answer in zip(sent, answers, strict=True):
            results[index] = answer
        return results

    def _expect_late(self, sent: Sequence[tuple[LoggedEvent, Decision]]) -> None:
        """Request the redelivery of a mirror's objects that a request without an answer may overwrite later."""
        late: dict[ObjectHash, int] = {}
        for logged, verdict in sent if self._late else ():
            if isinstance(verdict, Event) and verdict.id in self._late:
                late[logged.object] = min(logged.seq, late.get(logged.object, logged.seq))
        self._late.clear()
        if late:  # before the settlement, or a crash in between would lose it
            self._request_redelivery(late, self._clock() + REDELIVERY.latest_arrival_ms)

    def _with_decisions(
        self,
        reader: PartitionReader,
        events: Sequence[LoggedEvent],
        answers: Sequence[Answer],
        before: Sequence[int] | None,
    ) -> list[Answer]:
        """Return the answers, with a decision for each event that was the only one the target refused."""
        suspects = [index for index, answer in enumerate(answers) if isinstance(answer, Suspect)]
        refusals = reader.refusals({(events[index].partition, events[index].seq) for index in suspects})
        now, is_up = self._moment, not self._opinion.in_doubt
        decided = judged(
            answers,
            [event.partition for event in events],
            before or [0] * len(events),
            refusals,
            parked=before is not None,
            is_up=is_up,
            refused_at=now - is_up,  # a target that is up delivered after the refusal, one in doubt before it
            due=lambda refusal: now + back_off(1, self._rng, refusal.retry_after),
        )
        if all(isinstance(decided[index], RefusedAgain) for index in suspects):
            self._opinion.clear()
        self._refusals = refusals
        return decided

    def _call(self, events: Sequence[Event]) -> Sequence[Outcome]:
        work = self._work
        started = time.monotonic()
        lost = False
        try:
            if not work.opened:
                work.target.open()
                work.opened = True
            outcomes = work.target.deliver(events, work.window, self._guard)
        except LeaseExpired:
            # The call may have stopped anywhere: an answer to a pending request must not be taken for one to the next.
            work.target.close()
            work.opened = False
            self._note_late(events)
            raise
        except TargetUnavailable as error:
            unavailable = Unavailable(
                error.reason, error.retry_after, error.pause, unreachable=True, may_arrive=error.may_arrive
            )
            outcomes = [unavailable] * len(events)
        except Exception as error:
            # A defect of an adapter must not stop the partition: it counts as a failed attempt at the events, which
            # makes it visible and bounds the number of attempts.
            log.exception("%s: unexpected", work.name)
            outcomes = [Failed(f"unexpected {type(error).__name__}")] * len(events)
            lost = True
        took = time.monotonic() - started
        self._took += took
        paired = zip(events, outcomes, strict=True)
        self._note_late(
            event for event, outcome in paired if lost or (isinstance(outcome, Unavailable) and outcome.may_arrive)
        )
        if self._metrics is not None:
            self._metrics.called(outcomes, took)
        return outcomes

    def _note_late(self, events: Iterable[Event]) -> None:
        """Remember events that a target which keeps the newest state may get after newer ones."""
        if self._work.policy is not Policy.LOG:
            self._late.update(event.id for event in events)

    def _settle(
        self, settlement: Settlement, events: Sequence[LoggedEvent], results: Sequence[Result], began: float
    ) -> None:
        now = self._clock()
        if DELIVERED in results:
            settlement.delivered_at = self._moment - self._opinion.in_doubt
        before = dict(self._lease.positions)
        self._store.settle(self._lease, settlement, now)
        self._unsettled = ((), ())
        self._log_results(settlement, events, results, began)
        done: list[int] = []
        if settlement.replay is None:
            done = [event.received_at for event, result in zip(events, results, strict=True) if result is DELIVERED]
        if self._metrics is not None:
            self._metrics.delivered(done, now)
        if self._recorder is not None and events:
            target_id, took = self._lease.target_id, round(self._took * 1000)
            made = attempts_of(target_id, before, settlement, events, results, at=now, duration=took)
            self._recorder.add(target_id, made, histogram(done, now))

    def _log_results(
        self, settlement: Settlement, events: Sequence[LoggedEvent], results: Sequence[Result], began: float
    ) -> None:
        counts = counted(settlement)
        self.summary.counts += counts
        now = self._clock()
        for setback in failed_attempts(settlement, zip(events, results, strict=True)):
            log_failed_attempt(self._work.name, setback, self._took, now)
        self._batch_log.add(settlement.progress, counts, time.monotonic() - began, call_trace.take())
