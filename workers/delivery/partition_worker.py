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


def _by_danger(parked: Sequence[ParkedEvent]) -> tuple[list[ParkedEvent], list[ParkedEvent]]:
    """Return those of the events that are before any of their object which lost its worker, and those that are next."""
    safe: list[ParkedEvent] = []
    dangerous: dict[ObjectHash, ParkedEvent] = {}
    begun: set[ObjectHash] = set()
    for entry in parked:
        place = entry.logged.object
        if place in dangerous:
            continue
        if has_lost_worker(entry):
            dangerous[place] = entry
        else:
            safe.append(entry)
            begun.add(place)
    return safe, [entry for place, entry in dangerous.items() if place not in begun]


def _heads(parked: Sequence[ParkedEvent]) -> list[ParkedEvent]:
    """Return the first of the events of each object."""
    return list({entry.logged.object: entry for entry in reversed(parked)}.values())[::-1]


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
        self._has_lost = False  # events that lost their worker are due
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
        them is unavailable. Events that were being sent when a worker was lost come when nothing else is due, or at the
        end of the lease: they may kill this one. After several such workers what is parked comes first, each by itself.
        """
        kinds = [self._deliver_parked, self._deliver_replays, self._deliver_log]
        sizer, limit, careful = self._target.sizer, self._limit, self._lease.careful
        self._turn = turn = _Turn(sizer.limit if limit is None else limit.take(sizer.size))
        if limit is not None and not careful:  # whichever kind is first may take all tokens
            self._rng.shuffle(kinds)
        worked, kept = False, 0
        for deliver in kinds:
            if self._opinion.is_certain or not turn.allowed:  # without tokens the drain offers them again later
                break
            if worked and careful:
                break
            if worked:
                reader.recheck_parked()
            worked |= deliver(reader)
            if limit is not None and self._has_lost and not kept:
                kept = min(1, turn.allowed)  # a token for what comes last: the log takes whatever there is
                turn.allowed -= kept
        turn.allowed += kept
        if turn.had_parked and (not worked or kept or self._stop()):
            worked |= self._deliver_lost(reader)
        if limit is not None and turn.allowed:
            limit.give_back(turn.allowed)
        self.summary.unavailable = self._opinion.verdict()
        if self.summary.unavailable is not None:
            self._target.disconnect()
        return worked

    def _deliver_parked(self, reader: PartitionReader, *, lost: bool = False) -> bool:
        """Deliver parked events that are due: with `lost` those that lost their worker, otherwise the others."""
        began, size, in_doubt = time.monotonic(), self._target.sizer.size, self._opinion.in_doubt
        due = reader.due_objects(self._clock(), retry.MAX_SAMPLED_OBJECTS if in_doubt else size)
        if not due:
            self._has_lost = False
            return False
        self._turn.had_parked = True
        # While the target is in doubt, choose objects at random: the first one may be the only one that it refuses.
        size = min(len(due), size)
        objects = self._rng.sample(due, min(size, retry.MAX_OPINIONS)) if in_doubt else due[:size]
        safe, dangerous = _by_danger(reader.load_parked(objects, self._target.sizer.size))
        if dangerous and not (safe or lost or in_doubt):  # others may be due behind them
            due = reader.due_objects(self._clock(), retry.MAX_SAMPLED_OBJECTS)
            objects = self._rng.sample(due, min(size, len(due)))
            safe, dangerous = _by_danger(reader.load_parked(objects, self._target.sizer.size))
        self._has_lost = bool(dangerous)
        if lost or self._lease.careful:
            return self._deliver_alone(reader, dangerous if lost else _heads(safe))
        if safe:
            self._deliver_together(reader, safe, began)
        return bool(safe)

    def _deliver_together(self, reader: PartitionReader, parked: Sequence[ParkedEvent], began: float) -> None:
        decisions = decide([entry.logged for entry in parked], self._target.policy, reader)
        paired = zip(parked, decisions, strict=True)
        deliveries = [Delivery(entry.logged, decision, entry) for entry, decision in paired]
        self._deliver(reader, BatchRecord(self._lease.target_id, deliveries, began))

    def _deliver_alone(self, reader: PartitionReader, parked: Sequence[ParkedEvent]) -> bool:
        """Deliver parked events of different objects one by one; return whether there are any.

        An attempt is counted before it is made, so that an event which kills each worker has a last one. It counts also
        if it could not be settled, because the outbox was away or the lease revoked. What is refused while the target
        is in doubt stays, but for the first: an outage must not look like a refusal of many events.
        """
        refused = 0  # since the target last gave an answer of its own
        for entry in parked:
            if self._stop() and entry is not parked[0]:
                break
            if self._opinion.is_certain or not self._turn.allowed:
                break
            delivery = Delivery(entry.logged, entry.logged.event, entry)
            batch = BatchRecord(self._lease.target_id, [delivery], time.monotonic())
            if give_up(delivery):
                self._settle(batch)
                continue
            if self._target.connect():  # otherwise the event is not to blame
                self._begin(delivery, self._clock())
            [delivery.decision] = decide([entry.logged], self._target.policy, reader)
            self._deliver(reader, batch, judges=not refused)
            refused = refused + 1 if self._opinion.in_doubt else 0
            asks_for_rest = delivery.retry_after is not None or batch.seconds > retry.OPINION_PATIENCE_SECONDS
            if refused > (1 if asks_for_rest else retry.MAX_OPINIONS):
                break
        return bool(parked)

    def _deliver_lost(self, reader: PartitionReader) -> bool:
        """Deliver what was being sent when a worker was lost; return whether there is any.

        A probe that was answered ends first, so that the circuit breaker is closed whatever becomes of this worker.
        """
        if not self._turn.allowed or self._opinion.is_certain or (self._lease.probing and self._opinion.answered):
            return False
        reader.recheck_parked()
        return self._deliver_parked(reader, lost=True)

    def _begin(self, delivery: Delivery, now: int) -> None:
        """Count an attempt that is made next, and have its object followed if nobody learns what becomes of it."""
        self._guard.check()
        if self._target.policy is not Policy.LOG:  # a killed worker cannot request it, and the event is not due then
            written = {delivery.logged.object: delivery.logged.seq}
            arrives = now + REDELIVERY.latest_arrival_ms
            redelivery.request(self._store.database, self._lease.target_id, written, arrives, epoch=self._lease.epoch)
        self._store.settle(self._lease, begin_attempt(delivery, self._target.schedule, now, self._rng), now)

    def _deliver_log(self, reader: PartitionReader) -> bool:
        began, turn = time.monotonic(), self._turn
        batch = reader.load(self._read_limit)
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
    def _read_limit(self) -> int:
        """How many events of the log are read at once."""
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
                batch = reader.load_replay(replay, self._read_limit)
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

    def _deliver(self, reader: PartitionReader, batch: BatchRecord, *, judges: bool = True) -> None:
        """Send what is to be sent, decide what becomes of each event, write that, and show it to the observers.

        With `judges` a refused event that may be to blame itself is parked for a moment.
        """
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
        if judges and (suspects := self._opinion.suspects()):
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
