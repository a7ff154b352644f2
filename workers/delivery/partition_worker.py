"""Work off one lease: load, deliver and settle until its partitions are empty or its time is over."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from random import Random

from app.events.model import Event
from app.outbox.delivery import redelivery
from app.outbox.delivery.availability import RateLimit
from app.outbox.delivery.due_work import ObjectHash
from app.outbox.delivery.leases import Lease, LeaseLost, ReplayPartition
from app.outbox.delivery.logged_events import LogPosition
from app.outbox.delivery.partition_reader import Batch, ParkedEvent, PartitionReader
from app.outbox.delivery.settlement_store import SettlementStore
from app.outbox.engine.database import DatabaseUnavailable, now_ms
from app.outbox.engine.db_errors import may_be_a_value
from app.outbox.policies import REDELIVERY
from workers.delivery import retry
from workers.delivery.lease_term import EventWait
from workers.delivery.namespace_policy import Policy, SkipReason, decide, decide_others, newest_sent
from workers.delivery.outcomes import Delivered, Unavailable
from workers.delivery.pooled_target import PooledTarget
from workers.delivery.second_opinion import SecondOpinion
from workers.delivery.settlement import (
    BatchRecord,
    Delivery,
    Observer,
    begin_attempt,
    give_up,
    has_lost_worker,
    oldest_by_object,
    settle,
)
from workers.targets.base import NO_LEASE, LeaseCheck, LeaseExpired
from workers.telemetry.delivery_log import BatchLog, counts_text

log = logging.getLogger("bucketwire.partitions")


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


@dataclass(slots=True)
class _Turn:
    """One turn: how many events may still be sent, and what was read of the log."""

    allowed: int
    events: int = 0
    partitions: Set[int] = frozenset()
    at_end: bool = False  # the log was read to its end, and no event stayed behind for lack of room
    had_parked: bool = False  # parked events were due


class PartitionWorker:
    """Works off one lease. `clock` returns milliseconds since 1970; `guard` checks that the lease still holds.

    `observers` see the batches, beside those of the target. `request_redelivery` gets the objects of requests that may
    arrive late and the time by which they have; the default is `app.outbox.delivery.redelivery.request`.
    """

    def __init__(
        self,
        store: SettlementStore,
        target: PooledTarget,
        lease: Lease,
        clock: Callable[[], int] = now_ms,
        guard: LeaseCheck = NO_LEASE,
        observers: Sequence[Observer] = (),
        request_redelivery: Callable[[Mapping[ObjectHash, int], int], None] | None = None,
    ) -> None:
        self._store = store
        self._target = target
        self._lease = lease
        self._clock = clock
        self._guard = guard
        self._observers = (BatchLog(target.name), *target.observers, *observers)
        self._request_redelivery = request_redelivery or partial(
            redelivery.request, store.database, lease.target_id, epoch=lease.epoch
        )
        self._unsettled: Sequence[Delivery] = ()
        self._rng = Random()  # noqa: S311 - jitter, not a secret
        self._opinion = SecondOpinion(self._rng, probing=lease.probing)
        self._stop: Callable[[], bool] = lambda: False
        self._limit = RateLimit(store.database, lease.target_id, target.rate, clock) if target.rate else None
        self._turn = _Turn(target.sizer.limit)
        self._moment = 0  # the time of the current batch, by which refusals and deliveries are ordered
        self.summary = LeaseSummary()

    def work_off(self, stop: Callable[[], bool], wait: EventWait | None = None) -> LeaseSummary:
        """Deliver until the partitions are empty, the target is unavailable, or `stop()` is true.

        `wait` may wait for more events before they count as empty; without it none does. Raises `LeaseLost`,
        `LeaseExpired`.
        """
        self._stop = stop
        try:
            with self._store.reading(self._lease, newest=self._target.policy is Policy.MIRROR) as reader:
                self._succeed(reader)
                choose = partial(newest_sent, policy=self._target.policy, known=reader)
                redelivery.park_redeliveries(self._store.database, reader, self._lease, choose, self._clock())
                while self._run_turn(reader) and self.summary.unavailable is None and not stop():
                    turn = self._turn
                    # Without tokens there may be unsent events; if no tokens arise, the next turn ends the lease.
                    at_end = turn.at_end and not turn.had_parked and turn.allowed > 0
                    if wait is None:
                        goes_on = not at_end or reader.has_work()
                    else:
                        goes_on = wait.wants_next_batch(reader, turn.events, at_end=at_end, shares=self._shares())
                    if not goes_on:
                        break
                    reader.recheck_parked()
        finally:
            for observer in self._observers:
                observer.lease_ended()
        self.summary.answered = self._opinion.answered
        return self.summary

    def _succeed(self, reader: PartitionReader) -> None:
        """Treat what a holder that was killed, or hangs, may have sent as requests without an answer.

        It can request no redelivery itself. Before the first batch, or nobody would know of it after another kill.
        """
        abandoned = self._lease.abandoned
        if self._lease.careful:
            log.warning(
                "%s: the last workers of partition %s were killed, or hung, so each of its events is sent alone",
                self._target.name, ", ".join(map(str, self._lease.positions)),
            )  # fmt: skip
        # A log has no state that could get old. Only a holder that still runs has it end with the newest event, as that
        # one knows what it may have sent late (`Deliverer`).
        if abandoned and self._target.policy is not Policy.LOG:
            limit, now = max(self._target.sizer.limit, retry.MAX_SAMPLED_OBJECTS), self._clock()
            written = reader.objects_in_flight(abandoned, now, limit)
            self._request_redelivery(written, now + REDELIVERY.latest_arrival_ms)

    def unsettled(self) -> dict[ObjectHash, int]:
        """Return the objects whose events may have been sent since the last settlement, with the seq of the oldest."""
        return oldest_by_object(self._unsettled)

    def _shares(self) -> bool:
        """Return whether others could work off some of the partitions at the same time, and that would be faster."""
        if self._limit is not None:  # whose tokens are what the partitions wait for
            return False
        busy = self._turn.partitions if self._turn.events > retry.FEW_EVENTS else frozenset()
        return len(busy | {replay.partition for replay in self._lease.replays}) > 1

    def _run_turn(self, reader: PartitionReader) -> bool:
        """Deliver one batch of each kind of due work; return whether there was any.

        The next kind serves as the second opinion on what was refused in one. A target that is in doubt after all of
        them is unavailable. After workers that were lost each event is parked before it is sent, and parked events come
        first.
        """
        kinds = [self._deliver_parked, self._deliver_replays, self._deliver_log]
        sizer, limit = self._target.sizer, self._limit
        self._turn = turn = _Turn(sizer.limit if limit is None else limit.take(sizer.size))
        if limit is not None and not self._lease.careful:  # whichever kind is first may take all tokens
            self._rng.shuffle(kinds)
        worked = False
        for deliver in kinds:
            if self._opinion.is_certain or not turn.allowed:  # without tokens the drain offers them again later
                break
            if worked and self._lease.careful:
                break
            if worked:
                reader.recheck_parked()
            worked |= deliver(reader)
        if limit is not None and turn.allowed:
            limit.give_back(turn.allowed)
        self.summary.unavailable = self._opinion.verdict()
        if self.summary.unavailable is not None:
            self._target.disconnect()
        return worked

    def _deliver_parked(self, reader: PartitionReader) -> bool:
        began, size, in_doubt = time.monotonic(), self._target.sizer.size, self._opinion.in_doubt
        due = reader.due_objects(self._clock(), retry.MAX_SAMPLED_OBJECTS if in_doubt else size)
        if not due:
            return False
        self._turn.had_parked = True
        # While the target is in doubt, choose objects at random: the first one may be the only one that it refuses.
        size = min(len(due), size)
        objects = self._rng.sample(due, min(size, retry.MAX_OPINIONS)) if in_doubt else due[:size]
        parked = reader.load_parked(objects, self._target.sizer.size)
        alone = self._dangerous(parked)
        parked = parked if alone is None else [alone]
        decisions = decide([entry.logged for entry in parked], self._target.policy, reader)
        paired = zip(parked, decisions, strict=True)
        deliveries = [Delivery(entry.logged, decision, entry) for entry, decision in paired]
        record = BatchRecord(self._lease.target_id, deliveries, began)
        if alone is None:
            self._deliver(reader, record)
        else:
            self._deliver_alone(reader, record, deliveries[0])
        return True

    def _dangerous(self, parked: Sequence[ParkedEvent]) -> ParkedEvent | None:
        """Return an object's first event that may kill the worker: any after lost workers, or one that was being sent.

        None if there is none.
        """
        heads = {entry.logged.object: entry for entry in reversed(parked)}.values()
        return next((entry for entry in heads if self._lease.careful or has_lost_worker(entry)), None)

    def _deliver_alone(self, reader: PartitionReader, batch: BatchRecord, delivery: Delivery) -> None:
        """Count the attempt at an event before it is made, so that one that kills each worker has a last attempt."""
        schedule, now = self._target.schedule, self._clock()
        if isinstance(delivery.decision, Event):
            if give_up(delivery, schedule, self._rng):
                self._settle(batch)
                return
            if not self._target.is_connected:  # by itself first: no event is to blame if this kills the worker
                self._target.open()
            self._guard.check()
            self._store.settle(self._lease, begin_attempt(delivery, schedule, now, self._rng), now)
        self._deliver(reader, batch)

    def _deliver_log(self, reader: PartitionReader) -> bool:
        began, turn = time.monotonic(), self._turn
        batch = reader.load(self._most)
        turn.events, turn.partitions = len(batch.events), {event.partition for event in batch.events}
        turn.at_end = batch.at_end
        if not batch.scanned:
            return False
        record = self._deliver_batch(reader, batch, began)  # one without events settles how far the log was read
        turn.had_parked |= self._lease.careful
        turn.at_end &= not any(delivery.decision is SkipReason.NO_ROOM for delivery in record.deliveries)
        self._target.is_quick = record.seconds < retry.QUICK_BATCH_SECONDS
        return True

    @property
    def _most(self) -> int:
        """How many events of the log to read at once."""
        size = self._target.sizer.size
        return min(size, retry.MAX_CAREFUL_EVENTS) if self._lease.careful else size

    def _deliver_replays(self, reader: PartitionReader) -> bool:
        worked = False
        for replay in list(self._lease.replays):
            if not self._opinion.is_certain and self._turn.allowed:
                worked |= self._try_replay(reader, replay)
            if not self._guard.has_time() or not self._turn.allowed:  # each replay would make one more request
                break
        return worked

    def _try_replay(self, reader: PartitionReader, replay: ReplayPartition) -> bool:
        """Deliver a batch of a replay; postpone one that fails, so that the events of the log continue."""
        failing = self._target.failing_replays
        if failing.is_due(replay, self._clock()):
            # Events that the log's own cursor passed while the replay was postponed are older than what the replay
            # sends now, so the replay sends them once more, in order.
            replay.until = max(replay.until, self._lease.positions[replay.partition])
            try:
                began = time.monotonic()
                batch = reader.load_replay(replay, self._most)
                self._deliver_batch(reader, batch, began, replay)
            except (LeaseLost, LeaseExpired):
                raise
            except Exception as error:
                if isinstance(error, DatabaseUnavailable) and not may_be_a_value(error):
                    raise
                wait = failing.postpone(replay, self._clock())
                log.exception(
                    "%s: replay %d fails in partition %d, next try in %d s; `bucketwire replay cancel %d` ends it",
                    self._target.name, replay.replay_id, replay.partition, wait // 1000, replay.replay_id,
                )  # fmt: skip
            else:
                failing.clear(replay)
                return True
        self._lease.replays = [other for other in self._lease.replays if other is not replay]
        return False

    def _deliver_batch(
        self, reader: PartitionReader, batch: Batch, began: float, replay: ReplayPartition | None = None
    ) -> BatchRecord:
        """Deliver what was read of the log, but not what waits behind a parked event, is parked itself, or dead.

        After lost workers nothing is sent: all of it is parked, and sent from there.
        """
        events, waiting = batch.events, reader.waiting(batch.events)
        skipped: dict[LogPosition, SkipReason] = {}
        if self._lease.careful:
            skipped = {(one.partition, one.seq): SkipReason.BEHIND_PARKED for one in events}
        elif waiting:
            skipped = {(one.partition, one.seq): SkipReason.BEHIND_PARKED for one in events if one.object in waiting}
        if replay is not None:
            known = reader.parked_or_dead([(event.partition, event.seq) for event in events])
            skipped |= dict.fromkeys(known, SkipReason.SUPERSEDED)
        decisions = decide_others(events, skipped, self._target.policy, reader)
        record = BatchRecord(
            self._lease.target_id, list(map(Delivery, events, decisions)), began,
            read_after={partition: self._lease.positions[partition] for partition in batch.scanned},
            read_to=batch.scanned, replay=replay,
        )  # fmt: skip
        self._deliver(reader, record)
        return record

    def _deliver(self, reader: PartitionReader, batch: BatchRecord) -> None:
        """Send what is to be sent, decide what becomes of each event, write that, and show it to the observers."""
        sent = [delivery for delivery in batch.deliveries if isinstance(delivery.decision, Event)]
        if self._limit is not None:  # the rest stays where it is
            sent = sent[: self._turn.allowed]
            self._turn.allowed -= len(sent)
        self._opinion.begin(sent)
        if sent:
            self._guard.check()
            self._unsettled = batch.deliveries
            self._send(batch)
        if batch.deliveries:
            # Events that need no sending count too; otherwise batches of a mirror that is far behind would stay small.
            self._target.sizer.took(len(batch.deliveries), batch.seconds)
            # Later than the previous batch by 2 ms, so that a time in between exists.
            self._moment = max(self._clock(), self._moment + 2)
        if suspects := self._opinion.suspects():
            self._opinion.judge(reader.refusals(self._moment, suspects), self._moment)
        is_delivered = any(isinstance(delivery.outcome, Delivered) for delivery in sent)
        self._settle(batch, self._moment - self._opinion.in_doubt if is_delivered else 0)

    def _settle(self, batch: BatchRecord, delivered_at: int = 0) -> None:
        """Decide what becomes of each event, write that, and show it to the observers.

        `delivered_at` is when the target confirmed one (ms), 0 if it confirmed none.
        """
        batch.settled_at = self._clock()
        settlement = settle(batch, self._target.schedule, batch.settled_at, self._rng)
        settlement.delivered_at = delivered_at
        self._store.settle(self._lease, settlement, batch.settled_at)
        self._unsettled = ()
        self.summary.counts += batch.counts()
        for observer in self._observers:
            observer.batch_settled(batch)

    def _send(self, batch: BatchRecord) -> None:
        """Make calls until all events have an answer, second opinions are refused, or it is time to stop."""
        late: list[Delivery] = []
        try:
            for number, deliveries in enumerate(iter(self._opinion.next_call, ())):
                if number and self._stop():
                    break
                events = [delivery.decision for delivery in deliveries if isinstance(delivery.decision, Event)]
                call = self._target.call(events, self._guard)
                batch.seconds += call.seconds
                batch.trace = call.trace
                late += [deliveries[index] for index in call.late()]
                call.check()
                self._opinion.record(deliveries, call.outcomes, call.seconds)
        finally:
            # Before the settlement, or a crash in between would lose it. A log has no state that could get old.
            if late and self._target.policy is not Policy.LOG:
                self._request_redelivery(oldest_by_object(late), self._clock() + REDELIVERY.latest_arrival_ms)
