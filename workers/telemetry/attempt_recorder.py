"""Record attempts and delivery times in the outbox, beside the deliveries.

A settlement only adds to a buffer in this process; a thread writes the buffer every two seconds, if there is anything
in it. So recording costs a delivery neither a statement nor a round trip, and a worker that is killed loses
what it settled in its last two seconds from this record, and from nothing else. The buffer is bounded: of very many
attempts at one target within two seconds some are not recorded, and contiguous batches are merged.
"""

import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import groupby

import orjson
import sqlalchemy as sa

from app.outbox import series
from app.outbox.admin import event_states
from app.outbox.admin.event_states import Attempt, bounded
from app.outbox.column_values import UNSTORABLE_REASON, WHOLE_LOG
from app.outbox.engine.database import VALUE_ERRORS, Database, DatabaseUnavailable, describe_error, refuses_value
from app.outbox.series import Histogram, histogram
from workers.delivery import retry
from workers.delivery.outcomes import Delivered, NotAttempted, Outcome, Rejected, Unavailable
from workers.delivery.settlement import BatchRecord, Delivery, Observer, State

_SETTLED = {
    State.DELIVERED: event_states.DELIVERED,
    State.UNCHANGED: event_states.UNCHANGED,
    State.SUPERSEDED: event_states.SUPERSEDED,
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
            yield attempt(partition, first, last, outcome=event_states.DELIVERED, events=events)
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
                outcome = event_states.REJECTED if isinstance(delivery.outcome, Rejected) else event_states.FAILED
                number, reason = delivery.row.attempts, bounded(delivery.reason)
                exchange = _exchange(delivery.outcome)
                yield attempt(partition, seq, seq, outcome=outcome, attempt=number, reason=reason, exchange=exchange)
            elif delivery.suspicion is not None:
                reason = bounded(delivery.reason)
                exchange = _exchange(delivery.outcome)
                yield attempt(partition, seq, seq, outcome=event_states.UNAVAILABLE, reason=reason, exchange=exchange)
            elif isinstance(delivery.outcome, Unavailable):
                refused.append(delivery)
        if refused:
            first, last, reason = refused[0].logged.seq, refused[-1].logged.seq, bounded(refused[-1].reason)
            exchange, events = _exchange(refused[-1].outcome), len(refused)
            yield attempt(
                partition,
                first,
                last,
                outcome=event_states.UNAVAILABLE,
                events=events,
                reason=reason,
                exchange=exchange,
            )


def _exchange(outcome: Outcome) -> str | None:
    if isinstance(outcome, Delivered | NotAttempted) or outcome.exchange is None:
        return None
    return orjson.dumps(asdict(outcome.exchange)).decode()


def _settled_runs(batch: BatchRecord, deliveries: Sequence[Delivery]) -> Iterator[tuple[str, list[int]]]:
    """Yield the runs of settled events with the same outcome; each parked event is a run."""
    for outcome, group in groupby(deliveries, key=lambda delivery: _SETTLED.get(delivery.state, "")):
        # What a replay passes because it is parked or a dead letter is not superseded.
        if not outcome or (outcome == event_states.SUPERSEDED and batch.replay is not None):
            continue
        run = [delivery.logged.seq for delivery in group]
        yield from [(outcome, run)] if batch.read_to else [(outcome, [seq]) for seq in run]


log = logging.getLogger("bucketwire.worker")


@dataclass(slots=True)
class _Pending:
    """What is to be written of one target."""

    settled: list[Attempt] = field(default_factory=list)
    failed: list[Attempt] = field(default_factory=list)
    times: Histogram = field(default_factory=Counter)
    last: dict[int, int] = field(default_factory=dict)  # by partition: the index of its last row in `settled`

    def add(self, attempt: Attempt) -> None:
        if not attempt.is_settled:
            if len(self.failed) < retry.MAX_RECORDED_ROWS:
                self.failed.append(attempt)
            return
        index = self.last.get(attempt.partition)
        if index is not None and len(self.settled) >= retry.SEPARATE_RUNS and _continues(self.settled[index], attempt):
            self.settled[index] = _joined(self.settled[index], attempt)
        elif len(self.settled) < retry.MAX_RECORDED_ROWS:
            self.last[attempt.partition] = len(self.settled)
            self.settled.append(attempt)


def _continues(before: Attempt, attempt: Attempt) -> bool:
    """Return whether no event of the target lies between two runs of the log, which have the same outcome."""
    same = (before.outcome, before.replay_id) == (attempt.outcome, attempt.replay_id)
    return same and before.last_seq + 1 == attempt.first_seq


def _joined(before: Attempt, attempt: Attempt) -> Attempt:
    return replace(
        before,
        last_seq=attempt.last_seq,
        at=attempt.at,
        events=before.events + attempt.events,
        duration=before.duration + attempt.duration,
    )


class AttemptRecorder(Observer):
    """The attempts of this process that are not written yet. Create one in the process that uses it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._adding = threading.Lock()
        self._writing = threading.Lock()
        self._pending: dict[int, _Pending] = {}
        self._unwritten: Mapping[int, _Pending] = {}  # by a write that failed
        self._untrimmed: dict[int, int] = {}  # rows written since, by target
        self._wanted = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, target_id: int, made: Iterable[Attempt], times: Histogram) -> None:
        """Have attempts at a target recorded within some seconds, and the times of deliveries. Never fails or waits."""
        with self._adding:
            pending = self._pending.setdefault(target_id, _Pending())
            for attempt in made:
                pending.add(attempt)
            pending.times.update(times)
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._run, name="attempts", daemon=True)
                self._thread.start()
        self._wanted.set()

    def batch_settled(self, batch: BatchRecord) -> None:
        """Have the attempts of a batch recorded."""
        if batch.deliveries:
            self.add(batch.target_id, attempts_of(batch), histogram(batch.delivered_times(), batch.settled_at))

    def flush(self) -> None:
        """Write what is pending now; while the database is unavailable, it stays pending."""
        with self._writing:
            for _ in range(2 if self._unwritten else 1):
                if not self._unwritten:
                    with self._adding:
                        self._unwritten, self._pending = self._pending, {}
                # What fails for an unknown reason is not tried again.
                unwritten, self._unwritten = self._unwritten, {}
                if not self._write(unwritten):
                    self._unwritten = unwritten
                    return

    def close(self) -> None:
        """Have the thread write what is pending and end; wait for it, but not long for a database that hangs."""
        self._closed.set()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join(retry.LAST_RECORD_SECONDS)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._wanted.wait()
            is_last = self._closed.wait(retry.RECORD_INTERVAL_SECONDS)
            self._wanted.clear()
            try:
                self.flush()
            except Exception:  # the next write may succeed
                log.exception("attempts cannot be recorded")
            if self._unwritten:
                self._wanted.set()

    def _write(self, pending: Mapping[int, _Pending]) -> bool:
        """Write in one transaction; return whether nothing of it is left to do."""
        rows = [attempt for one in pending.values() for attempt in (*one.settled, *one.failed)]
        times = {target_id: one.times for target_id, one in pending.items()}
        if not rows and not any(times.values()):
            return True
        try:
            self._insert(rows, times)
        except (sa.exc.SQLAlchemyError, *VALUE_ERRORS) as error:
            if refuses_value(error):
                log.warning("the outbox database refused what is known of an attempt: %s", describe_error(error))
                self._insert([_without_reason(row) for row in rows], times)
            elif isinstance(error, DatabaseUnavailable):
                return False
            else:
                raise
        return True

    def _insert(self, rows: Sequence[Attempt], times: Mapping[int, Histogram]) -> None:
        written = Counter(row.target_id for row in rows)
        full = sorted(one for one in written if self._untrimmed.get(one, retry.TRIM_ROWS) >= retry.TRIM_ROWS)
        with self._database.writing() as connection:
            event_states.record_attempts(connection, rows)
            series.report_times(connection, times)
            for target_id in full:
                event_states.trim_attempts(connection, target_id)
        for target_id, number in written.items():
            self._untrimmed[target_id] = 0 if target_id in full else self._untrimmed[target_id] + number


def _without_reason(attempt: Attempt) -> Attempt:
    return replace(attempt, reason=UNSTORABLE_REASON if attempt.reason else "", exchange=None)
