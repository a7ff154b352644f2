"""Describe a settled batch as attempts for the record. Pure: uses no clock and no database."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby

from app.outbox.delivery import attempts
from app.outbox.delivery.attempts import Attempt, bounded
from app.outbox.delivery.logged_events import LoggedEvent
from app.outbox.delivery.transitions.settlement import Progress, Settlement
from app.outbox.markers import NEVER, WHOLE_LOG
from workers.delivery.namespace_policy import SkipReason
from workers.delivery.outcomes import DELIVERED, Delivered, Failed, Rejected, Unavailable
from workers.delivery.second_opinion import Suspect
from workers.delivery.settlement import Result

_SKIPPED = {SkipReason.SUPERSEDED: attempts.SUPERSEDED, SkipReason.NOTHING_TO_DO: attempts.UNCHANGED}
_Pairs = Sequence[tuple[LoggedEvent, Result]]


def attempts_of(
    target_id: int,
    before: Mapping[int, int],
    settlement: Settlement,
    events: Sequence[LoggedEvent],
    results: Sequence[Result],
    *,
    at: int,
    duration: int,
) -> Iterator[Attempt]:
    """Yield the attempts of one batch. `before` has the position of each partition's cursor before the settlement.

    A run of delivered events of the log is one attempt, as are the events of a partition that were refused as
    unavailable; every failed attempt, and every parked event that was delivered, is one by itself. An event whose
    failure does not count, because an earlier one of its object failed as well, has none.
    """
    made = _Maker(target_id, settlement, at, duration)
    if settlement.only_advances and results.count(DELIVERED) == len(results):
        for partition, progress in settlement.progress.items():
            if progress.position is not None and progress.delivered:
                first, last = before[partition] + 1, progress.position
                yield made.attempt(partition, first, last, attempts.DELIVERED, progress.delivered)
        return
    by_partition: defaultdict[int, list[tuple[LoggedEvent, Result]]] = defaultdict(list)
    for logged, result in zip(events, results, strict=True):
        by_partition[logged.partition].append((logged, result))
    for partition, pairs in by_partition.items():
        pairs.sort(key=lambda pair: pair[0].seq)
        yield from made.settled(partition, pairs)
        yield from made.failed(partition, pairs)


class _Maker:
    """Makes the attempts of one batch."""

    def __init__(self, target_id: int, settlement: Settlement, at: int, duration: int) -> None:
        self._target_id = target_id
        self._settlement = settlement
        self._at = at
        self._duration = duration
        self._numbers = {(row.partition, row.seq): row.attempts for row in settlement.deaths} | {
            (row.partition, row.seq): row.attempts for row in chain(settlement.park, settlement.repark)
        }

    def attempt(
        self, partition: int, first: int, last: int, outcome: str, events: int, *, number: int = 0, reason: str = ""
    ) -> Attempt:
        replay = self._settlement.replay
        return Attempt(
            self._target_id, partition, first, last, self._at, outcome, events, self._duration, number,
            replay[0].replay_id if replay else WHOLE_LOG, bounded(reason) if reason else "",
        )  # fmt: skip

    def settled(self, partition: int, pairs: _Pairs) -> Iterator[Attempt]:
        """Yield the runs of settled events."""
        progress = self._settlement.progress.get(partition, Progress())
        settles_runs, end = True, progress.position
        if self._settlement.replay is not None:
            end = self._settlement.replay[1]
        elif end is None:  # parked events, or events of the log that all stay where they are
            settles_runs, end = False, NEVER
            if not (self._settlement.unpark or self._settlement.repark):
                return
        done = [(logged, _settled_as(result)) for logged, result in pairs if logged.seq <= end]
        for outcome, run in groupby(done, key=lambda pair: pair[1]):
            # What a replay passes because it is parked or a dead letter is not superseded.
            if not outcome or (outcome == attempts.SUPERSEDED and self._settlement.replay):
                continue
            seqs = [logged.seq for logged, _ in run]
            if settles_runs:
                yield self.attempt(partition, seqs[0], seqs[-1], outcome, len(seqs))
            else:
                yield from (self.attempt(partition, seq, seq, outcome, 1) for seq in seqs)

    def failed(self, partition: int, pairs: _Pairs) -> Iterator[Attempt]:
        """Yield the failed attempts, and one for the events that were refused as unavailable."""
        refused: list[int] = []
        reason = ""
        for logged, result in pairs:
            seq = logged.seq
            match result:
                case Failed() | Rejected() if number := self._numbers.get((partition, seq)):
                    outcome = attempts.REJECTED if isinstance(result, Rejected) else attempts.FAILED
                    yield self.attempt(partition, seq, seq, outcome, 1, number=number, reason=result.reason)
                case Suspect():
                    yield self.attempt(partition, seq, seq, attempts.UNAVAILABLE, 1, reason=result.refusal.reason)
                case Unavailable():
                    refused.append(seq)
                    reason = result.reason
        if refused:
            yield self.attempt(partition, refused[0], refused[-1], attempts.UNAVAILABLE, len(refused), reason=reason)


def _settled_as(result: Result) -> str:
    if isinstance(result, Delivered):
        return attempts.DELIVERED
    return _SKIPPED[result] if isinstance(result, SkipReason) else ""
